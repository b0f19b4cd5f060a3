// AVX-512F: the filter looks at 16 tokens at once. Masked-off lanes are not read, so the end of a
// block needs no special case.
#include <immintrin.h>

#include "cpu/logits/draw_row_loop.h"

namespace vllm_fork {
namespace {

using Words = uint32_t __attribute__((vector_size(64)));

// The first words of up to 16 numbers; a number is 64 bits.
inline Words first_words(const uint32_t* words, __mmask16 lanes) {
  const __m512i low = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(lanes), words);
  const __m512i high = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(lanes >> 8), words + 16);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return reinterpret_cast<Words>(_mm512_permutex2var_epi32(low, even, high));
}

struct Avx512Lanes {
  static constexpr int kCount = 16;

  static uint32_t kept(const uint32_t* words, const float* probs, float scale, int count) {
    const auto lanes = static_cast<__mmask16>((1u << count) - 1);
    const Words bits = mt_temper(first_words(words, lanes)) & kMtHighMask;
    const __m512 high = _mm512_maskz_cvtepi32_ps(lanes, reinterpret_cast<__m512i>(bits));
    const __m512 bound = _mm512_mul_ps(_mm512_set1_ps(scale), high);
    const __m512 prob = _mm512_maskz_loadu_ps(lanes, probs);
    const __m512 lifted = _mm512_mul_ps(prob, _mm512_set1_ps(kLift));
    return _mm512_mask_cmp_ps_mask(lanes, lifted, bound, _CMP_NLT_UQ);
  }
};

}  // namespace

int64_t draw_row_avx512(uint32_t* state, const float* probs, int64_t vocab_size) {
  return draw<Avx512Lanes>(state, probs, vocab_size);
}

void skip_numbers_avx512(uint32_t* state, int64_t count) { mt_skip(state, count); }

}  // namespace vllm_fork
