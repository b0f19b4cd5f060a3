// The digits of a block of numbers: a loop that translation units compile with their own flags.
//
// Everything here has internal linkage (see portable/macros.h for what goes wrong otherwise).
#pragma once

#include <algorithm>
#include <cstdint>

#include "portable/product.h"
#include "portable/product_layout.h"

namespace vllm_fork {
namespace {

// Numbers are split so many at a time, and those that a block lacks for that are zeros.
inline constexpr int64_t kSplitAtOnce = 16;

VLLM_FORK_INLINE int64_t filled(int64_t count) {
  return divide_up(count, kSplitAtOnce) * kSplitAtOnce;
}

struct BlockDigits {
  alignas(64) int8_t high[kBlock];
  alignas(64) int8_t low[kBlock];
};

// The exponent of filled(count) numbers; only if it is in the range of the specification do their
// digits mean anything.
VLLM_FORK_INLINE int exponent_of_block(const float* values, int64_t count, int least_exponent) {
  const int64_t end = filled(count);
  uint32_t largest = 0;
  for (int64_t k = 0; k < end; ++k) {
    largest = std::max(largest, bits_of(values[k]) & ~kSignBit);
  }
  return block_exponent(largest, least_exponent);
}

// Fills the digits of filled(count) numbers, which are multiplied by `scale`, of their exponent.
template <bool kBreakTies>
VLLM_FORK_INLINE void split_block(const float* values, int64_t count, float scale,
                                  BlockDigits& digits) {
  const int64_t end = filled(count);
  for (int64_t k = 0; k < end; ++k) {
    const int32_t rounded = round_to_integer(values[k] * scale);
    const int32_t v = kBreakTies ? break_tie(rounded) : rounded;
    digits.high[k] = static_cast<int8_t>(upper_digit(v));
    digits.low[k] = static_cast<int8_t>(lower_digit(v));
  }
}

// Fills up the digits of `count` numbers with zeros to `padded`.
VLLM_FORK_INLINE void pad_digits(int64_t count, int64_t padded, BlockDigits& digits) {
  const int64_t end = filled(count);
  if (padded <= end) return;
  std::fill(digits.high + end, digits.high + padded, int8_t{0});
  std::fill(digits.low + end, digits.low + padded, int8_t{0});
}

}  // namespace
}  // namespace vllm_fork
