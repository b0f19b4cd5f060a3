// AVX512_BF16: a register holds one row's sums of 16 outputs; what is read of two rows of the weight
// is put together as pairs on the way, for all rows at once.
#include <immintrin.h>

#include <algorithm>

#include "cpu/torch_order/single_row/bfloat16_pairs.h"
#include "cpu/torch_order/single_row/row_chains.h"

namespace vllm_fork {
namespace {
namespace avx512bf16 {

// Columns of x, and rows of the weight, that stay in the first cache while all rows of x pass.
constexpr int64_t kDepth = 64;

// The numbers of 32 outputs, of which `mask` are there.
inline __m512i outputs_of(const uint16_t* weight, __mmask32 mask) {
  return _mm512_maskz_loadu_epi16(mask, weight);
}

// Adds columns i to end of kRows rows to their chains, [kRows, kTransposedTile].
template <int kRows>
void add(const TransposedOperands& operands, const uint16_t* x, const uint16_t* weight,
         int64_t outputs, int64_t i, int64_t end, bool is_first, float* chains) {
  const int64_t size = operands.size, stride = operands.stride;
  for (int64_t n = 0; n < outputs; n += kTransposedLanes) {
    const int64_t count = std::min(kTransposedLanes, outputs - n);
    const __mmask32 mask = static_cast<__mmask32>((uint64_t{1} << count) - 1);
    __m512 low[kRows], high[kRows];
    for (int m = 0; m < kRows; ++m) {
      const float* own = chains + m * kTransposedTile + n;
      low[m] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(own);
      high[m] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(own + kTransposedLanes / 2);
    }
    for (int64_t p = i; p < end; p += 2) {
      const uint16_t* at = weight + p * stride + n;
      const int64_t ahead = std::min(kDepth, size - 2 - p) * stride;  // not beyond the weight
      _mm_prefetch(reinterpret_cast<const char*>(at + ahead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(at + ahead + stride), _MM_HINT_T0);
      const __m512i even = outputs_of(at, mask), odd = outputs_of(at + stride, mask);
      const auto first = (__m512bh)_mm512_unpacklo_epi16(even, odd);
      const auto second = (__m512bh)_mm512_unpackhi_epi16(even, odd);
      for (int m = 0; m < kRows; ++m) {
        const __m512bh row = broadcast_pair(x + m * size + p);
        low[m] = _mm512_dpbf16_ps(low[m], row, first);
        high[m] = _mm512_dpbf16_ps(high[m], row, second);
      }
    }
    for (int m = 0; m < kRows; ++m) {
      float* own = chains + m * kTransposedTile + n;
      _mm512_storeu_ps(own, low[m]);
      _mm512_storeu_ps(own + kTransposedLanes / 2, high[m]);
    }
  }
}

void add_to_all(const TransposedOperands& operands, const uint16_t* weight, int64_t outputs,
                int64_t i, int64_t end, bool is_first, float* chains) {
  int64_t m = 0;
  const auto take = [&](auto some, int64_t count) {
    for (; m + count <= operands.rows; m += count) {
      some(operands, operands.x + m * operands.size, weight, outputs, i, end, is_first,
           chains + m * kTransposedTile);
    }
  };
  take(add<8>, 8);
  take(add<4>, 4);
  take(add<2>, 2);
  take(add<1>, 1);
}

}  // namespace avx512bf16
}  // namespace

void transposed_chains_avx512bf16(const TransposedOperands& operands, const uint16_t* weight,
                                  int64_t outputs, int64_t block, float* chains, float* sums) {
  const int64_t count = operands.rows * kTransposedTile;
  for (int64_t first = 0; first < operands.size; first += block) {
    const int64_t last = std::min(operands.size, first + block);
    for (int64_t i = first; i < last; i += avx512bf16::kDepth) {
      const int64_t end = std::min(last, i + avx512bf16::kDepth);
      avx512bf16::add_to_all(operands, weight, outputs, i, end, i == first, chains);
    }
    for (int64_t k = 0; k < count; k += 16) {
      store_block(sums + k, _mm512_loadu_ps(chains + k), first == 0);
    }
  }
}

}  // namespace vllm_fork
