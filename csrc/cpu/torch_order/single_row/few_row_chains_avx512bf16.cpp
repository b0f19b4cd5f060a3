// AVX512_BF16: a register holds the sums of 16 outputs, so that what is read of the weight is
// transposed on the way, and rows are broadcast. For up to kMostFewRows rows, whose sums stay in
// registers.
#include <immintrin.h>

#include <algorithm>

#include "cpu/torch_order/single_row/bfloat16_pairs.h"
#include "cpu/torch_order/single_row/row_chains.h"

namespace vllm_fork {
namespace {
namespace avx512bf16 {

constexpr int64_t kLanes = 16;                // outputs
constexpr int64_t kColumns = 32;              // of what comes from memory at once
constexpr int kQuarter = kFewRowColumns / 2;  // pairs, in a quarter of a register

// The pairs from `weight` on of 16 outputs, four registers of one pair each.
inline void transposed(const uint16_t* weight, int64_t size, __m512i (&pairs)[kQuarter]) {
  __m512i rows[kQuarter];  // row j has, in quarter l, what output 4 * l + j has
  for (int j = 0; j < kQuarter; ++j) {
    const auto at = [&](int l) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(weight + (4 * l + j) * size));
    };
    rows[j] = _mm512_castsi128_si512(at(0));
    rows[j] = _mm512_mask_broadcast_i32x4(rows[j], 0x00f0, at(1));
    rows[j] = _mm512_mask_broadcast_i32x4(rows[j], 0x0f00, at(2));
    rows[j] = _mm512_mask_broadcast_i32x4(rows[j], 0xf000, at(3));
  }
  const __m512i low_01 = _mm512_unpacklo_epi32(rows[0], rows[1]);
  const __m512i low_23 = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i high_01 = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i high_23 = _mm512_unpackhi_epi32(rows[2], rows[3]);
  pairs[0] = _mm512_unpacklo_epi64(low_01, low_23);
  pairs[1] = _mm512_unpackhi_epi64(low_01, low_23);
  pairs[2] = _mm512_unpacklo_epi64(high_01, high_23);
  pairs[3] = _mm512_unpackhi_epi64(high_01, high_23);
}

// Sums of kGroups * 16 outputs, to sums[row * outputs].
template <int kRows, int kGroups>
void chains(const uint16_t* x, const uint16_t* weight, int64_t outputs, int64_t size,
            int64_t block, float* sums) {
  for (int64_t first = 0; first < size; first += block) {
    __m512 own[kGroups][kRows];
    for (auto& group : own) {
      for (auto& sum : group) sum = _mm512_setzero_ps();
    }
    const auto add = [&](int64_t i, int64_t columns) __attribute__((always_inline)) {
      for (int g = 0; g < kGroups; ++g) {
        const uint16_t* group = weight + g * kLanes * size + i;
        // What the next outputs have there: hardware does not foresee so many places.
        for (int64_t n = 0; n < kLanes; ++n) {
          const uint16_t* next = group + (kGroups * kLanes + n) * size;
          _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
        }
        for (int64_t column = 0; column < columns; column += kFewRowColumns) {
          __m512i pairs[kQuarter];
          transposed(group + column, size, pairs);
          for (int p = 0; p < kQuarter; ++p) {
            for (int m = 0; m < kRows; ++m) {
              const __m512bh row = broadcast_pair(x + m * size + i + column + 2 * p);
              own[g][m] = _mm512_dpbf16_ps(own[g][m], row, (__m512bh)pairs[p]);
            }
          }
        }
      }
    };
    const int64_t last = std::min(size, first + block);
    int64_t i = first;
    for (; i + kColumns <= last; i += kColumns) add(i, kColumns);
    if (i < last) add(i, last - i);
    for (int g = 0; g < kGroups; ++g) {
      for (int m = 0; m < kRows; ++m) {
        store_block(sums + m * outputs + g * kLanes, own[g][m], first == 0);
      }
    }
  }
}

template <int kRows>
void all_outputs(const uint16_t* x, const uint16_t* weight, int64_t outputs, int64_t size,
                 int64_t block, float* sums) {
  int64_t n = 0;
  for (; n + 2 * kLanes <= outputs; n += 2 * kLanes) {
    chains<kRows, 2>(x, weight + n * size, outputs, size, block, sums + n);
  }
  for (; n < outputs; n += kLanes) {
    n = std::min(n, outputs - kLanes);  // some of the last ones are computed twice
    chains<kRows, 1>(x, weight + n * size, outputs, size, block, sums + n);
  }
}

}  // namespace avx512bf16
}  // namespace

void few_row_chains_avx512bf16(const uint16_t* x, int64_t rows, const uint16_t* weight,
                               int64_t outputs, int64_t size, int64_t block, float* sums) {
  int64_t m = 0;
  const auto take = [&](auto all, int64_t count) {
    for (; m + count <= rows; m += count) {
      all(x + m * size, weight, outputs, size, block, sums + m * outputs);
    }
  };
  take(avx512bf16::all_outputs<8>, 8);
  take(avx512bf16::all_outputs<4>, 4);
  take(avx512bf16::all_outputs<2>, 2);
  take(avx512bf16::all_outputs<1>, 1);
}

}  // namespace vllm_fork
