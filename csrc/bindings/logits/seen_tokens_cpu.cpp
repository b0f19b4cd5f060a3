// The CPU implementations of the ops on seen tokens.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <string>

#include "bindings/checks.h"
#include "cpu/isa.h"
#include "portable/seen_mask.h"

namespace vllm_fork {
namespace {

// A thread is worth waking for about this many logits.
constexpr int64_t kLogitsPerTask = 64 * 1024;

// Every entry is checked before any bit is set, so that an error leaves the mask as it was.
template <typename Token>
void mark(const Tensor& seen, const Tensor& slots, const Tensor& token_ids) {
  const int64_t count = slots.size(0);
  const int64_t num_words = seen.size(1);
  const auto* slot = slots.const_data_ptr<int32_t>();
  const auto* token = token_ids.const_data_ptr<Token>();
  const auto is_placeholder = [&](int64_t i) { return slot[i] < 0 || token[i] < 0; };
  for (int64_t i = 0; i < count; ++i) {
    if (is_placeholder(i)) continue;
    check_slot("mark_seen_tokens", i, slot[i], seen.size(0));
    check_token(i, token[i], num_words);
  }
  auto* words = seen.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < count; ++i) {
    if (is_placeholder(i)) continue;
    words[slot[i] * num_words + word_of(token[i])] |= static_cast<int32_t>(bit_of(token[i]));
  }
}

// Serial: a step marks one token a request, and entries of one request share words.
void mark_seen_tokens(Tensor seen, Tensor slots, Tensor token_ids) {
  check_mark_seen_tokens(seen, slots, token_ids);
  if (token_ids.scalar_type() == torch::headeronly::ScalarType::Long) {
    mark<int64_t>(seen, slots, token_ids);
  } else {
    mark<int32_t>(seen, slots, token_ids);
  }
}

void apply_repetition_penalty(Tensor logits, Tensor seen, Tensor slots, Tensor penalties,
                              bool reciprocal) {
  check_apply_repetition_penalty(logits, seen, slots, penalties);
  const int64_t rows = logits.size(0);
  const int64_t vocab = logits.size(1);
  if (rows == 0 || vocab == 0) return;

  const auto* slot = slots.const_data_ptr<int32_t>();
  const auto* penalty = penalties.const_data_ptr<double>();
  for (int64_t i = 0; i < rows; ++i) {
    if (slot[i] < 0) continue;
    check_slot("apply_repetition_penalty", i, slot[i], seen.size(0));
    check_penalty(i, penalty[i]);
  }

  const DivisionRule rule = reciprocal ? DivisionRule::kReciprocal : DivisionRule::kDivide;
  const PenalizeRow penalize_row = chosen_isa().penalize_row;
  auto* logit = logits.mutable_data_ptr<float>();
  const auto* words = seen.const_data_ptr<int32_t>();
  const int64_t stride = logits.stride(0);
  const int64_t num_words = seen.size(1);
  const int64_t grain = std::max<int64_t>(1, kLogitsPerTask / vocab);
  torch::stable::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (slot[i] < 0) continue;
      penalize_row(logit + i * stride, words + slot[i] * num_words, vocab, penalty[i], rule);
    }
  });
}

std::string cpu_isa() { return chosen_isa().name; }

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("mark_seen_tokens", TORCH_BOX(&vllm_fork::mark_seen_tokens));
  library.impl("apply_repetition_penalty", TORCH_BOX(&vllm_fork::apply_repetition_penalty));
}

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CompositeExplicitAutograd, library) {
  library.impl("cpu_isa", TORCH_BOX(&vllm_fork::cpu_isa));
}
