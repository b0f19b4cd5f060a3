#include "cpu/portable/product/pack_weight.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "cpu/portable/product/block_digits.h"
#include "portable/number_types.h"
#include "portable/product.h"

namespace vllm_fork {
namespace {

// Calls `function` with a pointer to the numbers of the weight's type.
template <typename Function>
auto with_numbers(const WeightNumbers& weight, const Function& function) {
  switch (weight.format) {
    case Format::kFloat16: return function(static_cast<const Float16*>(weight.data));
    case Format::kBfloat16: return function(static_cast<const Bfloat16*>(weight.data));
    default: return function(static_cast<const float*>(weight.data));
  }
}

// Writes an output's digits of a block at the block, and its word.
void write_output(const BlockDigits& digits, int exponent, int64_t count, int64_t output,
                  uint8_t* block) {
  int32_t high_sum = 0;
  int32_t low_sum = 0;
  for (int64_t k = 0; k < count; ++k) {
    block[digit_offset(k, 0, output)] = static_cast<uint8_t>(digits.high[k]);
    block[digit_offset(k, 1, output)] = static_cast<uint8_t>(digits.low[k]);
    high_sum += digits.high[k];
    low_sum += digits.low[k];
  }
  const int32_t word = block_word(exponent, high_sum, low_sum);
  std::memcpy(block + output * sizeof word, &word, sizeof word);
}

// One output's part of a panel. Returns whether its numbers are in range.
template <typename Number>
bool pack_output(const ProductShape& shape, const Number* row, const int8_t* equalised,
                 int64_t output, uint8_t* panel) {
  int64_t channel = 0;
  for (int64_t block = 0; block < shape.blocks(); ++block) {
    alignas(64) float values[kBlock] = {};
    BlockDigits digits;
    const int64_t count = shape.block_inputs(block % shape.segment_blocks());
    for (int64_t k = 0; k < count; ++k) {
      const int exponent = equalised ? equalised[channel + k] : 0;
      values[k] = widen(row[channel + k]) * power_of_two(exponent);
    }
    const int exponent = exponent_of_block(values, count, kLeastWeightExponent);
    if (exponent > kGreatestWeightExponent) return false;
    split_block<false>(values, count, power_of_two(-exponent), digits);
    write_output(digits, exponent, count, output, panel);
    panel += kWordBytes + divide_up(count, kGroup) * kGroupBytes;
    channel += count;
  }
  return true;
}

// The exponent e of a channel: the least with statistic * 4^e at least half the median.
int8_t exponent_to_median(uint64_t statistic, uint64_t median) {
  using Wide = unsigned __int128;
  constexpr int kMost = kMostEqualised;
  if (statistic == 0) return 0;
  int exponent = -kMost;
  Wide twice = 2 * static_cast<Wide>(statistic);  // both sides times 4^kMost
  const Wide lifted = static_cast<Wide>(median) << (2 * kMost);
  for (; exponent < kMost && twice < lifted; ++exponent) twice *= 4;
  return static_cast<int8_t>(exponent);
}

}  // namespace

int64_t pack_panels(const ProductShape& shape, const WeightNumbers& weight, const int8_t* equalised,
                    int64_t first, int64_t last, uint8_t* packed) {
  std::memset(packed + first * shape.panel_bytes(), 0, (last - first) * shape.panel_bytes());
  return with_numbers(weight, [&](const auto* numbers) -> int64_t {
    for (int64_t n = first * kPanel; n < std::min(shape.outputs, last * kPanel); ++n) {
      uint8_t* panel = packed + n / kPanel * shape.panel_bytes();
      if (!pack_output(shape, numbers + n * shape.inputs, equalised, n % kPanel, panel)) return n;
    }
    return -1;
  });
}

void unpack_outputs(const ProductShape& shape, const uint8_t* packed, const int8_t* equalised,
                    int64_t first, int64_t last, float* weight) {
  for (int64_t n = first; n < last; ++n) {
    const uint8_t* block = packed + n / kPanel * shape.panel_bytes();
    int64_t channel = 0;
    for (int64_t b = 0; b < shape.blocks(); ++b) {
      const int64_t count = shape.block_inputs(b % shape.segment_blocks());
      int32_t word;
      std::memcpy(&word, block + n % kPanel * sizeof word, sizeof word);
      const int exponent = (word & 255) - 127 - 8;
      for (int64_t k = 0; k < count; ++k, ++channel) {
        const auto high = static_cast<int8_t>(block[digit_offset(k, 0, n % kPanel)]);
        const auto low = static_cast<int8_t>(block[digit_offset(k, 1, n % kPanel)]);
        const int shift = exponent - (equalised ? equalised[channel] : 0);
        weight[n * shape.inputs + channel] =
            static_cast<float>(256 * high + low) * power_of_two(shift);
      }
      block += kWordBytes + divide_up(count, kGroup) * kGroupBytes;
    }
  }
}

void add_channel_statistics(int64_t outputs, int64_t inputs, const WeightNumbers& weight,
                            int64_t first, int64_t last, int64_t* statistics) {
  with_numbers(weight, [&](const auto* numbers) {
    for (int64_t n = 0; n < outputs; ++n) {
      for (int64_t k = first; k < last; ++k) {
        statistics[k] += channel_statistic(widen(numbers[n * inputs + k]));
      }
    }
  });
}

void equalise_channels(const int64_t* statistics, int64_t inputs, int8_t* exponents) {
  std::vector<int64_t> present;
  std::copy_if(statistics, statistics + inputs, std::back_inserter(present),
               [](int64_t statistic) { return statistic != 0; });
  std::fill(exponents, exponents + inputs, int8_t{0});
  if (present.empty()) return;
  const auto middle = present.begin() + (present.size() - 1) / 2;
  std::nth_element(present.begin(), middle, present.end());
  for (int64_t k = 0; k < inputs; ++k) {
    exponents[k] = exponent_to_median(statistics[k], *middle);
  }
}

}  // namespace vllm_fork
