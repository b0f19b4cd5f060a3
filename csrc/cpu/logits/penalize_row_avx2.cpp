// AVX2: a word is four vectors of 8 logits; each byte of its bits is spread over eight lanes.
#include <immintrin.h>

#include "cpu/logits/penalize_row_loop.h"

namespace vllm_fork {
namespace {

// Lane i is all ones if bit i of `bits` is set, else zero.
inline __m256i lane_mask(uint32_t bits) {
  const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i spread = _mm256_set1_epi32(static_cast<int>(bits));
  return _mm256_cmpeq_epi32(_mm256_and_si256(spread, lane_bit), lane_bit);
}

template <DivisionRule rule>
struct Avx2Word {
  explicit Avx2Word(const RepetitionPenalty<rule>& penalty)
      : factor(_mm256_set1_ps(penalty.factor)), divisor(_mm256_set1_ps(penalty.divisor)) {}

  static constexpr int64_t kBlock = 8;

  static uint32_t nonzero_words(const int32_t* words) {
    const __m256i block = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    const __m256i is_zero = _mm256_cmpeq_epi32(block, _mm256_setzero_si256());
    return ~static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(is_zero))) & 0xff;
  }

  void operator()(float* logits, uint32_t bits) const {
    for (; bits != 0; bits >>= 8, logits += 8) {
      if ((bits & 0xff) != 0) penalize(logits, lane_mask(bits));
    }
  }

  // Masked-off lanes are neither read nor written, so the end of the row needs no special case.
  void penalize(float* logits, __m256i seen) const {
    const __m256 x = _mm256_maskload_ps(logits, seen);
    const __m256 negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
    const __m256 multiplied = _mm256_mul_ps(x, factor);
    const __m256 divided = rule == DivisionRule::kReciprocal ? _mm256_mul_ps(x, divisor)
                                                             : _mm256_div_ps(x, divisor);
    _mm256_maskstore_ps(logits, seen, _mm256_blendv_ps(divided, multiplied, negative));
  }

  __m256 factor;
  __m256 divisor;
};

}  // namespace

void penalize_row_avx2(float* logits, const int32_t* seen, int64_t vocab_size, double penalty,
                       DivisionRule rule) {
  penalize_row<Avx2Word>(logits, seen, vocab_size, penalty, rule);
}

}  // namespace vllm_fork
