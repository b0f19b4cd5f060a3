// What a block adds to sums, in a register of AVX-512.
//
// Everything here has internal linkage (see portable/macros.h for what goes wrong otherwise).
#pragma once

#include <immintrin.h>

#include "cpu/portable/product/tile_sums.h"

namespace vllm_fork {
namespace {

// The scales in the block words of 16 outputs.
VLLM_FORK_INLINE __m512 avx512_scales(__m512i words) {
  const __m512i exponents = _mm512_and_si512(words, _mm512_set1_epi32(255));
  return _mm512_castsi512_ps(_mm512_slli_epi32(exponents, 23));
}

// The specification's add_block_sum for 16 outputs, whose sums are at `index`.
VLLM_FORK_INLINE void avx512_add_scaled(const TileSums& sums, int64_t index, __m512i block,
                                        __m512 weight_scales, float row_scale) {
  const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(block), weight_scales);
  sums.add(index, _mm512_mul_ps(scaled, _mm512_set1_ps(row_scale)));
}

}  // namespace
}  // namespace vllm_fork
