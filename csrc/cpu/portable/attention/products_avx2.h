// The integer products of attention where bytes must be widened first: digits become 16 bits, so
// that coefficients need no digits, and pairs are multiplied and added at once.
#pragma once

#include <immintrin.h>

#include "cpu/portable/attention/attention_loop.h"

namespace vllm_fork {
namespace {

template <typename Isa>
struct WidenedProducts {
  static constexpr int kQuarters = 4;  // of 16 sums: a register holds two halves of four

  template <int kCount>
  static void products(const CoefficientRow* rows, const Tiles& tiles, const Sums* out) {
    for (int m = 0; m < kCount; ++m) sum(rows[m].integers, tiles, out[m]);
  }

  static void sum(const int16_t* coefficients, const Tiles& tiles, const Sums& out) {
    __m256i upper[kQuarters];
    __m256i lower[kQuarters];
    for (int q = 0; q < kQuarters; ++q) upper[q] = lower[q] = _mm256_setzero_si256();
    for (int i = 0; i < tiles.count; ++i) {
      for (int64_t s = 0; s < tiles.steps; ++s, coefficients += 4) {
        int64_t four;
        std::memcpy(&four, coefficients, sizeof four);
        const __m256i factor = _mm256_set1_epi64x(four);
        for (int q = 0; q < kQuarters; ++q) {
          const int64_t place = s * tiles.stride + 16 * q;
          upper[q] = add_products(upper[q], tiles.upper[i] + place, factor);
          lower[q] = add_products(lower[q], tiles.lower[i] + place, factor);
        }
      }
    }
    for (int q = 0; q < kQuarters; q += 2) {
      store(out.upper + 4 * q, upper[q], upper[q + 1]);
      store(out.lower + 4 * q, lower[q], lower[q + 1]);
    }
  }

  static __m256i add_products(__m256i sums, const int8_t* digits, __m256i factor) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(digits));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), factor));
  }

  // Adds neighbours and puts the eight sums in order.
  static void store(int32_t* out, __m256i first, __m256i second) {
    const __m256i sums = _mm256_hadd_epi32(first, second);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm256_permute4x64_epi64(sums, _MM_SHUFFLE(3, 1, 2, 0)));
  }
};

}  // namespace
}  // namespace vllm_fork
