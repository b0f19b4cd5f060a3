// The CUDA implementations of the ops on logits: the torch side of cuda/logits/logits.cu.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>

#include "bindings/cuda_device.h"
#include "bindings/formats.h"
#include "bindings/portable_checks.h"
#include "cuda/logits/logits.h"

namespace vllm_fork {
namespace {

LogitRows rows_of(const Tensor& logits) {
  return {logits.data_ptr(), format_of(logits), logits.size(0), logits.stride(0), logits.size(1)};
}

// Blocks of threads that share a row, with memory for what they find.
struct SharedRows {
  int64_t parts;
  Tensor memory;

  explicit SharedRows(const Tensor& logits)
      : parts(choose_row_parts(rows_of(logits), facts_of(logits).multiprocessors)),
        memory(torch::stable::new_empty(logits, {logits.size(0), 2, parts}, ScalarType::Long)) {}

  RowParts pointers() const { return {parts, memory.data_ptr()}; }
};

// For the search of each row's last logit that stays.
Tensor selections_of(const Tensor& logits) {
  return torch::stable::new_zeros(logits, {logits.size(0), selection_words()}, ScalarType::Long);
}

Tensor portable_log_softmax(Tensor logits) {
  check_logits("portable_log_softmax", logits);
  const DeviceGuard guard(logits.get_device_index());
  Tensor result =
      torch::stable::new_empty(logits, {logits.size(0), logits.size(1)}, ScalarType::Float);
  const SharedRows shared(logits);
  STD_CUDA_CHECK(launch_portable_log_softmax(rows_of(logits), shared.pointers(),
                                             result.mutable_data_ptr<float>(),
                                             current_stream(logits)));
  return result;
}

Tensor portable_argmax(Tensor logits) {
  check_logits("portable_argmax", logits);
  const DeviceGuard guard(logits.get_device_index());
  Tensor result = torch::stable::new_empty(logits, {logits.size(0)}, ScalarType::Long);
  const SharedRows shared(logits);
  STD_CUDA_CHECK(launch_portable_argmax(rows_of(logits), shared.pointers(),
                                        result.mutable_data_ptr<int64_t>(),
                                        current_stream(logits)));
  return result;
}

std::tuple<Tensor, Tensor> portable_top_k(Tensor logits, int64_t k) {
  check_top_k(logits, k);
  const DeviceGuard guard(logits.get_device_index());
  const int64_t rows = logits.size(0);
  Tensor values = torch::stable::new_empty(logits, {rows, k}, ScalarType::Float);
  Tensor indices = torch::stable::new_empty(logits, {rows, k}, ScalarType::Long);
  Tensor memory = torch::stable::new_empty(logits, {rows, top_k_words(k)}, ScalarType::Long);
  const SharedRows shared(logits);
  const Tensor selections = selections_of(logits);
  STD_CUDA_CHECK(launch_portable_top_k(
      rows_of(logits), shared.pointers(), k, values.mutable_data_ptr<float>(),
      indices.mutable_data_ptr<int64_t>(), static_cast<uint64_t*>(memory.data_ptr()),
      selections.data_ptr(), current_stream(logits)));
  return {values, indices};
}

Tensor portable_filter(Tensor logits, Tensor temperatures, Tensor top_k, Tensor top_p,
                       Tensor min_p) {
  check_filter(logits, temperatures, top_k, top_p, min_p);
  check_devices("portable_filter", "logits", logits,
                {{"temperatures", temperatures},
                 {"top_k", top_k},
                 {"top_p", top_p},
                 {"min_p", min_p}});
  const DeviceGuard guard(logits.get_device_index());
  Tensor result =
      torch::stable::new_empty(logits, {logits.size(0), logits.size(1)}, ScalarType::Float);
  const Restrictions restrictions{
      temperatures.const_data_ptr<float>(), top_k.const_data_ptr<int32_t>(),
      top_p.const_data_ptr<float>(), min_p.const_data_ptr<float>()};
  const SharedRows shared(logits);
  const Tensor selections = selections_of(logits);
  STD_CUDA_CHECK(launch_portable_filter(rows_of(logits), shared.pointers(), restrictions,
                                        result.mutable_data_ptr<float>(), selections.data_ptr(),
                                        current_stream(logits)));
  return result;
}

Tensor portable_draw(Tensor logits, Tensor seeds, Tensor positions) {
  check_draw(logits, seeds, positions);
  check_devices("portable_draw", "logits", logits, {{"seeds", seeds}, {"positions", positions}});
  const DeviceGuard guard(logits.get_device_index());
  Tensor result = torch::stable::new_empty(logits, {logits.size(0)}, ScalarType::Long);
  const SharedRows shared(logits);
  STD_CUDA_CHECK(launch_portable_draw(rows_of(logits), shared.pointers(),
                                      seeds.const_data_ptr<int64_t>(),
                                      positions.const_data_ptr<int64_t>(),
                                      result.mutable_data_ptr<int64_t>(),
                                      current_stream(logits)));
  return result;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CUDA, library) {
  library.impl("portable_log_softmax", TORCH_BOX(&vllm_fork::portable_log_softmax));
  library.impl("portable_argmax", TORCH_BOX(&vllm_fork::portable_argmax));
  library.impl("portable_top_k", TORCH_BOX(&vllm_fork::portable_top_k));
  library.impl("portable_filter", TORCH_BOX(&vllm_fork::portable_filter));
  library.impl("portable_draw", TORCH_BOX(&vllm_fork::portable_draw));
}
