// AVX-512: columns of sixteen tokens as rows.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace vllm_fork {
namespace {
namespace avx512 {

// Makes columns of rows: four by four within quarters of registers, and then of the quarters.
inline void transpose(__m512 (&rows)[16]) {
  __m512 pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  // Of four rows from i on, quarter q of fours[i + j] is column 4 * q + j.
  __m512d fours[16];
  for (int i = 0; i < 16; i += 4) {
    for (int half = 0; half < 2; ++half) {
      const __m512d first = _mm512_castps_pd(pairs[i + half]);
      const __m512d second = _mm512_castps_pd(pairs[i + 2 + half]);
      fours[i + 2 * half] = _mm512_unpacklo_pd(first, second);
      fours[i + 2 * half + 1] = _mm512_unpackhi_pd(first, second);
    }
  }
  for (int j = 0; j < 4; ++j) {
    const auto of = [&](int i) { return _mm512_castpd_ps(fours[i + j]); };
    const __m512 even_low = _mm512_shuffle_f32x4(of(0), of(4), 0x88);
    const __m512 even_high = _mm512_shuffle_f32x4(of(8), of(12), 0x88);
    const __m512 odd_low = _mm512_shuffle_f32x4(of(0), of(4), 0xdd);
    const __m512 odd_high = _mm512_shuffle_f32x4(of(8), of(12), 0xdd);
    rows[j] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
    rows[4 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    rows[8 + j] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
    rows[12 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
  }
}

// Writes sixteen columns of up to sixteen tokens as sixteen rows, `stride` from one to the next. Where
// there is no token are zeros.
template <class Number>
void write_columns(const typename Number::Bits* const* tokens, int64_t count, int64_t column,
                   int64_t stride, float* target) {
  __m512 rows[16];
  for (int64_t t = 0; t < 16; ++t) {
    rows[t] = t < count ? Number::widen(tokens[t] + column) : _mm512_setzero_ps();
  }
  transpose(rows);
  for (int64_t i = 0; i < 16; ++i) _mm512_storeu_ps(target + i * stride, rows[i]);
}

}  // namespace avx512
}  // namespace
}  // namespace vllm_fork
