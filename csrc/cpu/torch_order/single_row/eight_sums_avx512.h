// AVX-512: products that are added in eight sums, which are folded by halves.
#pragma once

#include <immintrin.h>

namespace vllm_fork {
namespace {
namespace avx512 {

class EightSums {
 public:
  // Adds eight products, and then the next eight.
  void add(__m512 products) {
    sums_ = _mm256_add_ps(sums_, _mm512_castps512_ps256(products));
    const __m512 upper = _mm512_shuffle_f32x4(products, products, 0xee);
    sums_ = _mm256_add_ps(sums_, _mm512_castps512_ps256(upper));
  }

  float folded() const {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums_), _mm256_extractf128_ps(sums_, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 0x55)));
  }

 private:
  __m256 sums_ = _mm256_setzero_ps();
};

}  // namespace avx512
}  // namespace
}  // namespace vllm_fork
