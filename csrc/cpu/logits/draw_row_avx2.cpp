// AVX2: the filter looks at 8 tokens at once; what is left at the end of a block goes one by one.
#include <immintrin.h>

#include "cpu/logits/draw_row_loop.h"

namespace vllm_fork {
namespace {

using Words = uint32_t __attribute__((vector_size(32)));

// The first words of 8 numbers.
inline Words first_words(const uint32_t* words) {
  const __m256 low = _mm256_loadu_ps(reinterpret_cast<const float*>(words));
  const __m256 high = _mm256_loadu_ps(reinterpret_cast<const float*>(words + 8));
  const __m256d pairs = _mm256_castps_pd(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
  return reinterpret_cast<Words>(_mm256_permute4x64_pd(pairs, _MM_SHUFFLE(3, 1, 2, 0)));
}

struct Avx2Lanes {
  static constexpr int kCount = 8;

  static uint32_t kept(const uint32_t* words, const float* probs, float scale, int count) {
    if (count < kCount) return kept_one_by_one(words, probs, scale, count);
    const Words bits = mt_temper(first_words(words)) & kMtHighMask;
    const __m256 high = _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(bits));
    const __m256 bound = _mm256_mul_ps(_mm256_set1_ps(scale), high);
    const __m256 lifted = _mm256_mul_ps(_mm256_loadu_ps(probs), _mm256_set1_ps(kLift));
    return static_cast<uint32_t>(
        _mm256_movemask_ps(_mm256_cmp_ps(lifted, bound, _CMP_NLT_UQ)));
  }
};

}  // namespace

int64_t draw_row_avx2(uint32_t* state, const float* probs, int64_t vocab_size) {
  return draw<Avx2Lanes>(state, probs, vocab_size);
}

void skip_numbers_avx2(uint32_t* state, int64_t count) { mt_skip(state, count); }

}  // namespace vllm_fork
