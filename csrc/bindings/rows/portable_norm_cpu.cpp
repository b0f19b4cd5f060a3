// The CPU implementation of portable_norm.
#include <torch/csrc/stable/library.h>

#include <optional>

#include "bindings/portable_checks.h"
#include "bindings/portable_operators_cpu.h"
#include "bindings/rows/portable_rows.h"

namespace vllm_fork {
namespace {

// The parameters as float32, in memory that outlives the call of the work.
struct Parameters {
  std::vector<float> weight;
  std::vector<float> bias;
  Norm norm;

  Parameters(const std::optional<Tensor>& w, const std::optional<Tensor>& b, double offset,
             double epsilon)
      : weight(read(w)), bias(read(b)), norm{w ? weight.data() : nullptr,
                                             b ? bias.data() : nullptr,
                                             static_cast<float>(offset),
                                             static_cast<float>(epsilon)} {}

  static std::vector<float> read(const std::optional<Tensor>& parameter) {
    if (!parameter) return {};
    std::vector<float> values(parameter->numel());
    Numbers(*parameter).read(0, values.data(), parameter->numel());
    return values;
  }
};

// The residual becomes its sum with x, rounded; that is what is normalised.
void add_residual(const Numbers& residual, int64_t start, float* row, int64_t size) {
  residual.read(start, row + size, size);
  chosen_isa().operations->add(row, row + size, size);
  residual.write(start, row, size);
  residual.read(start, row, size);
}

}  // namespace

void norm_into(const Tensor& x, const std::optional<Tensor>& residual,
               const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
               double epsilon, double weight_offset, bool is_centred, const Tensor& result) {
  check_norm(x, residual, weight, bias, epsilon);
  const int64_t size = x.size(-1);
  const Numbers source(x);
  const Numbers target(result);
  const DefaultFloatEnvironment environment;
  const Parameters parameters(weight, bias, weight_offset, epsilon);
  const PortableOperations& operations = *chosen_isa().operations;
  const auto normalise = is_centred ? operations.layer_norm : operations.rms_norm;
  for_each_row(x.numel() / size, size, [&](int64_t i) {
    float* row = scratch_floats(2 * size);
    source.read(i * size, row, size);
    if (residual) add_residual(Numbers(*residual), i * size, row, size);
    normalise(row, parameters.norm, size);
    target.write(i * size, row, size);
  });
}

void rms_norm_heads(const Tensor& x, const Tensor& weight, double epsilon) {
  check_norm_heads(x, weight, epsilon);
  const int64_t heads = x.size(1);
  const int64_t size = x.size(2);
  const Numbers numbers(x);
  const DefaultFloatEnvironment environment;
  const Parameters parameters(weight, std::nullopt, 0.0, epsilon);
  for_each_row(x.size(0) * heads, size, [&](int64_t i) {
    const int64_t start = i / heads * x.stride(0) + i % heads * x.stride(1);
    float* head = scratch_floats(size);
    numbers.read(start, head, size);
    chosen_isa().operations->rms_norm(head, parameters.norm, size);
    numbers.write(start, head, size);
  });
}

namespace {

Tensor portable_norm(Tensor x, std::optional<Tensor> residual, std::optional<Tensor> weight,
                     std::optional<Tensor> bias, double epsilon, double weight_offset,
                     bool is_centred) {
  Tensor result = torch::stable::empty_like(x);
  norm_into(x, residual, weight, bias, epsilon, weight_offset, is_centred, result);
  return result;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_norm", TORCH_BOX(&vllm_fork::portable_norm));
}
