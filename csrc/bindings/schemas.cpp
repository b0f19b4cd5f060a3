// The ops of torch.ops.vllm_fork. Python documents them: vllm/fork_ops/seen_tokens.py and
// vllm/fork_ops/multinomial.py and vllm/fork_ops/row_products.py.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(vllm_fork, library) {
  library.def("mark_seen_tokens(Tensor(a!) seen, Tensor slots, Tensor token_ids) -> ()");
  library.def(
      "apply_repetition_penalty(Tensor(a!) logits, Tensor seen, Tensor slots, Tensor penalties, "
      "bool reciprocal) -> ()");
  library.def(
      "draw_tokens(Tensor probs, Tensor(a!) states, Tensor slots, Tensor offsets) -> Tensor");
  library.def("row_products(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  library.def("has_row_products() -> bool");
  library.def("cpu_isa() -> str");
}
