// The CUDA implementations of the ops on seen tokens: the torch side of cuda/logits/seen_tokens.cu.
#include <torch/csrc/stable/library.h>

#include "bindings/checks.h"
#include "bindings/cuda_device.h"
#include "cuda/logits/seen_tokens.h"

namespace vllm_fork {
namespace {

SeenMask shape_of(const Tensor& seen) { return {seen.size(0), seen.size(1)}; }

template <typename Token>
cudaError_t mark(const Tensor& seen, const Tensor& slots, const Tensor& token_ids) {
  return launch_mark_seen_tokens<Token>(seen.mutable_data_ptr<int32_t>(), shape_of(seen),
                                        slots.const_data_ptr<int32_t>(),
                                        token_ids.const_data_ptr<Token>(), slots.size(0),
                                        current_stream(seen));
}

void mark_seen_tokens(Tensor seen, Tensor slots, Tensor token_ids) {
  check_mark_seen_tokens(seen, slots, token_ids);
  const DeviceGuard guard(seen.get_device_index());
  const bool is_long = token_ids.scalar_type() == torch::headeronly::ScalarType::Long;
  STD_CUDA_CHECK(is_long ? mark<int64_t>(seen, slots, token_ids)
                         : mark<int32_t>(seen, slots, token_ids));
}

void apply_repetition_penalty(Tensor logits, Tensor seen, Tensor slots, Tensor penalties,
                              bool reciprocal) {
  check_apply_repetition_penalty(logits, seen, slots, penalties);
  const DeviceGuard guard(logits.get_device_index());
  const DivisionRule rule = reciprocal ? DivisionRule::kReciprocal : DivisionRule::kDivide;
  STD_CUDA_CHECK(launch_apply_repetition_penalty(
      logits.mutable_data_ptr<float>(), logits.size(0), logits.size(1), logits.stride(0),
      seen.const_data_ptr<int32_t>(), shape_of(seen), slots.const_data_ptr<int32_t>(),
      penalties.const_data_ptr<double>(), rule, current_stream(logits)));
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CUDA, library) {
  library.impl("mark_seen_tokens", TORCH_BOX(&vllm_fork::mark_seen_tokens));
  library.impl("apply_repetition_penalty", TORCH_BOX(&vllm_fork::apply_repetition_penalty));
}
