// The CPU implementation of portable_gated_rms_norm.
#include <torch/csrc/stable/library.h>

#include <string>

#include "bindings/portable_checks.h"
#include "bindings/states/requests.h"

namespace vllm_fork {
namespace {

// Where row i of x [rows, columns] or [tokens, heads, columns] begins.
int64_t start_of_row(const Tensor& x, int64_t i) {
  if (x.dim() == 2) return i * x.stride(0);
  return i / x.size(1) * x.stride(0) + i % x.size(1) * x.stride(1);
}

Tensor portable_gated_rms_norm(Tensor x, Tensor gate, std::optional<Tensor> weight,
                               double epsilon, int64_t group_size, bool norm_before_gate,
                               std::string activation) {
  const Function function = function_named("portable_gated_rms_norm", activation);
  check_gated_norm({x, gate, weight, epsilon, group_size});
  const DefaultFloatEnvironment environment;
  const std::vector<float> weights = weight ? read_parameter(*weight) : std::vector<float>();
  const std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  Tensor result = torch::stable::new_empty(x, shape);
  const Numbers source(x);
  const Numbers gates(gate);
  const Numbers target(result);
  const int64_t columns = x.size(-1);
  const PortableOperations& operations = *chosen_isa().operations;
  const auto normalise = [&](float* row) {
    for (int64_t first = 0; weight && first < columns; first += group_size) {
      const Norm norm{weights.data() + first, nullptr, 0.0f, static_cast<float>(epsilon)};
      operations.rms_norm(row + first, norm, group_size);
    }
  };
  for_each_row(result.numel() / columns, columns, [&](int64_t i) {
    float* row = scratch_floats(2 * columns);
    source.read(start_of_row(x, i), row, columns);
    gates.read(start_of_row(gate, i), row + columns, columns);
    operations.apply(function, row + columns, columns);
    if (norm_before_gate) normalise(row);
    operations.multiply(row, row + columns, columns);
    if (!norm_before_gate) normalise(row);
    target.write(i * columns, row, columns);
  });
  return result;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_gated_rms_norm", TORCH_BOX(&vllm_fork::portable_gated_rms_norm));
}
