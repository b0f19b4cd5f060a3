// The path for every CPU: it calls the portable arithmetic and defines what the others must give.
#include "cpu/logits/penalize_row_loop.h"

namespace vllm_fork {
namespace {

template <DivisionRule rule>
struct ScalarWord {
  explicit ScalarWord(const RepetitionPenalty<rule>& penalty) : penalize(penalty) {}

  static constexpr int64_t kBlock = 1;

  static uint32_t nonzero_words(const int32_t* words) { return words[0] != 0; }

  void operator()(float* logits, uint32_t bits) const {
    for (; bits != 0; bits &= bits - 1) {
      float& logit = logits[__builtin_ctz(bits)];
      logit = penalize(logit);
    }
  }

  RepetitionPenalty<rule> penalize;
};

}  // namespace

void penalize_row_scalar(float* logits, const int32_t* seen, int64_t vocab_size, double penalty,
                         DivisionRule rule) {
  penalize_row<ScalarWord>(logits, seen, vocab_size, penalty, rule);
}

}  // namespace vllm_fork
