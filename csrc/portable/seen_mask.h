// The layout of a row of seen tokens: bit `token % 32` of word `token / 32`.
#pragma once

#include <cstdint>

#include "portable/macros.h"

namespace vllm_fork {

inline constexpr int64_t kTokensPerWord = 32;

VLLM_FORK_INLINE constexpr int64_t num_mask_words(int64_t vocab_size) {
  return (vocab_size + kTokensPerWord - 1) / kTokensPerWord;
}

VLLM_FORK_INLINE constexpr int64_t word_of(int64_t token) { return token / kTokensPerWord; }

VLLM_FORK_INLINE constexpr uint32_t bit_of(int64_t token) {
  return uint32_t{1} << (token % kTokensPerWord);
}

// The bits of the last word that stand for tokens of the vocabulary. A caller may have marked a
// token in the padding behind it, and there is no logit to penalize there.
VLLM_FORK_INLINE constexpr uint32_t last_word_mask(int64_t vocab_size) {
  const int64_t tail = vocab_size % kTokensPerWord;
  return tail == 0 ? ~uint32_t{0} : (uint32_t{1} << tail) - 1;
}

}  // namespace vllm_fork
