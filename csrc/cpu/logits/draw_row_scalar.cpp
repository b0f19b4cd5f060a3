// The path for every CPU: it defines what the others must give.
#include "cpu/logits/draw_row_loop.h"

namespace vllm_fork {
namespace {

struct ScalarLanes {
  static constexpr int kCount = 24;  // divides kMtNumbers

  // Mostly no token is kept, which a loop without branches finds out; a compiler makes vectors of
  // it, even of those that every CPU has.
  static uint32_t kept(const uint32_t* words, const float* probs, float scale, int count) {
    if (count == kCount) {
      uint32_t any = 0;
      for (int i = 0; i < kCount; ++i) any |= is_kept(words + 2 * i, probs[i], scale) ? 1u : 0u;
      if (any == 0) return 0;
    }
    return kept_one_by_one(words, probs, scale, count);
  }
};

}  // namespace

int64_t draw_row_scalar(uint32_t* state, const float* probs, int64_t vocab_size) {
  return draw<ScalarLanes>(state, probs, vocab_size);
}

void skip_numbers_scalar(uint32_t* state, int64_t count) { mt_skip(state, count); }

}  // namespace vllm_fork
