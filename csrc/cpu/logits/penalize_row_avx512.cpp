// AVX-512F: a word is two vectors of 16 logits, and its bits are their lane masks as they are.
#include <immintrin.h>

#include "cpu/logits/penalize_row_loop.h"

namespace vllm_fork {
namespace {

template <DivisionRule rule>
struct Avx512Word {
  explicit Avx512Word(const RepetitionPenalty<rule>& penalty)
      : factor(_mm512_set1_ps(penalty.factor)), divisor(_mm512_set1_ps(penalty.divisor)) {}

  static constexpr int64_t kBlock = 16;

  static uint32_t nonzero_words(const int32_t* words) {
    const __m512i block = _mm512_loadu_si512(words);
    return _mm512_test_epi32_mask(block, block);
  }

  void operator()(float* logits, uint32_t bits) const {
    penalize(logits, static_cast<__mmask16>(bits));
    penalize(logits + 16, static_cast<__mmask16>(bits >> 16));
  }

  // Masked-off lanes are neither read nor written, so the end of the row needs no special case.
  void penalize(float* logits, __mmask16 seen) const {
    if (seen == 0) return;
    const __m512 x = _mm512_maskz_loadu_ps(seen, logits);
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 divided = rule == DivisionRule::kReciprocal ? _mm512_mul_ps(x, divisor)
                                                             : _mm512_div_ps(x, divisor);
    _mm512_mask_storeu_ps(logits, seen, _mm512_mask_mul_ps(divided, negative, x, factor));
  }

  __m512 factor;
  __m512 divisor;
};

}  // namespace

void penalize_row_avx512(float* logits, const int32_t* seen, int64_t vocab_size, double penalty,
                         DivisionRule rule) {
  penalize_row<Avx512Word>(logits, seen, vocab_size, penalty, rule);
}

}  // namespace vllm_fork
