// The loop that the per-instruction-set translation units share.
//
// Everything here has internal linkage, so that each of them gets its own copy compiled with its
// own flags (see portable/macros.h for what goes wrong otherwise).
#pragma once

#include <cstdint>

#include "cpu/logits/penalize_row.h"
#include "portable/seen_mask.h"

namespace vllm_fork {
namespace {

// `Word` is a function object made from the penalty. It is called with the 32 logits of a word and
// the bits to penalize, at least one of which is set; logits of clear bits may lie outside the row.
// Most words of a short text are zero, and which ones is unpredictable for a branch, so it also has
//   kBlock                   a number of words, and
//   nonzero_words(words)     which of the next kBlock words are not zero, one bit for each.
template <typename Word>
inline void for_each_seen_word(float* logits, const int32_t* seen, int64_t vocab_size,
                               const Word& word) {
  const int64_t last = num_mask_words(vocab_size) - 1;
  const auto visit = [&](int64_t w, uint32_t bits) {
    if (bits != 0) word(logits + w * kTokensPerWord, bits);
  };
  int64_t w = 0;
  for (; w + Word::kBlock <= last; w += Word::kBlock) {
    for (uint32_t left = Word::nonzero_words(seen + w); left != 0; left &= left - 1) {
      const int64_t here = w + __builtin_ctz(left);
      visit(here, static_cast<uint32_t>(seen[here]));
    }
  }
  for (; w < last; ++w) visit(w, static_cast<uint32_t>(seen[w]));
  visit(last, static_cast<uint32_t>(seen[last]) & last_word_mask(vocab_size));
}

// Turns the rule, known at run time, into a template argument, outside of the loop.
template <template <DivisionRule> class Word>
inline void penalize_row(float* logits, const int32_t* seen, int64_t vocab_size, double penalty,
                         DivisionRule rule) {
  if (rule == DivisionRule::kReciprocal) {
    const RepetitionPenalty<DivisionRule::kReciprocal> by_reciprocal(penalty);
    for_each_seen_word(logits, seen, vocab_size, Word<DivisionRule::kReciprocal>(by_reciprocal));
  } else {
    const RepetitionPenalty<DivisionRule::kDivide> divided(penalty);
    for_each_seen_word(logits, seen, vocab_size, Word<DivisionRule::kDivide>(divided));
  }
}

}  // namespace
}  // namespace vllm_fork
