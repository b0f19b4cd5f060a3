// AVX512_BF16: a register holds one output's sums of 16 rows; two groups of rows share what is read
// of the weight, and several outputs what is read of the rows.
#include <immintrin.h>

#include <algorithm>

#include "cpu/torch_order/single_row/bfloat16_pairs.h"
#include "cpu/torch_order/single_row/row_chains.h"

namespace vllm_fork {
namespace {
namespace avx512bf16 {

constexpr int kOutputs = 12;
constexpr int kFewOutputs = 4;
static_assert(kChainTile % kOutputs == 0);

// `pairs` and `out` are those of the first group; the second's lie `size / 2` and `outputs` further.
template <int kCount, int kGroups>
void chains(const uint32_t* pairs, const uint16_t* weight, int64_t outputs, int64_t size,
            int64_t block, float* out) {
  for (int64_t first = 0; first < size; first += block) {
    __m512 sums[kCount][kGroups];
    for (auto& output : sums) {
      for (auto& sum : output) sum = _mm512_setzero_ps();
    }
    for (int64_t i = first; i < std::min(size, first + block); i += 2) {
      __m512bh rows[kGroups];
      for (int g = 0; g < kGroups; ++g) {
        const uint32_t* source = pairs + (g * size + i) / 2 * kChainLanes;
        rows[g] = (__m512bh)_mm512_loadu_si512(source);
      }
      for (int n = 0; n < kCount; ++n) {
        const __m512bh w = broadcast_pair(weight + n * size + i);
        for (int g = 0; g < kGroups; ++g) sums[n][g] = _mm512_dpbf16_ps(sums[n][g], rows[g], w);
      }
    }
    for (int n = 0; n < kCount; ++n) {
      for (int g = 0; g < kGroups; ++g) {
        store_block(out + (g * outputs + n) * kChainLanes, sums[n][g], first == 0);
      }
    }
  }
}

template <int kGroups>
void all_outputs(const uint32_t* pairs, const uint16_t* weight, int64_t outputs, int64_t size,
                 int64_t block, float* out) {
  for (int64_t n = 0; n < outputs;) {
    const uint16_t* w = weight + n * size;
    float* target = out + n * kChainLanes;
    if (outputs - n >= kOutputs) {
      chains<kOutputs, kGroups>(pairs, w, outputs, size, block, target);
      n += kOutputs;
    } else if (outputs - n >= kFewOutputs) {
      chains<kFewOutputs, kGroups>(pairs, w, outputs, size, block, target);
      n += kFewOutputs;
    } else {
      chains<1, kGroups>(pairs, w, outputs, size, block, target);
      n += 1;
    }
  }
}

}  // namespace avx512bf16
}  // namespace

void row_chains_avx512bf16(const uint32_t* pairs, int64_t groups, const uint16_t* weight,
                           int64_t outputs, int64_t size, int64_t block, float* out) {
  int64_t g = 0;
  for (; g + 2 <= groups; g += 2) {
    avx512bf16::all_outputs<2>(pairs + g * size / 2 * kChainLanes, weight, outputs, size, block,
                               out + g * outputs * kChainLanes);
  }
  if (g < groups) {
    avx512bf16::all_outputs<1>(pairs + g * size / 2 * kChainLanes, weight, outputs, size, block,
                               out + g * outputs * kChainLanes);
  }
}

}  // namespace vllm_fork
