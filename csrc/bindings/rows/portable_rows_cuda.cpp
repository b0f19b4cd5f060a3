// The CUDA implementations of portable_map, portable_gated, portable_norm, those that make digits for
// a product as well, portable_rotary_table and portable_rotate: the torch side of
// cuda/rows/functions.cu, norm.cu and rotary.cu.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/cuda_device.h"
#include "bindings/formats.h"
#include "bindings/portable_checks.h"
#include "bindings/product/portable_product_cuda.h"
#include "bindings/rows/portable_rotation_cuda.h"
#include "cuda/rows/functions.h"
#include "cuda/rows/norm.h"
#include "cuda/rows/rotary.h"

namespace vllm_fork {
namespace {

Tensor portable_map(Tensor x, std::string function) {
  const Function chosen = function_named("portable_map", function);
  check_map(x);
  const DeviceGuard guard(x.get_device_index());
  Tensor result = torch::stable::empty_like(x);
  STD_CUDA_CHECK(launch_portable_map(x.data_ptr(), result.data_ptr(), format_of(x), x.numel(),
                                     chosen, current_stream(x)));
  return result;
}

using TensorAndDigits = std::tuple<Tensor, Tensor>;

int64_t rows_of(const Tensor& tensor) {
  const int64_t size = tensor.size(-1);
  return size == 0 ? 0 : tensor.numel() / size;
}

// Both kinds of activations, for a product: `result` is theirs, empty.
TensorAndDigits activation_digits(const char* op, const Tensor& x, Function function,
                                  const Tensor& result, const std::optional<Tensor>& exponents,
                                  int64_t outputs, int64_t segments,
                                  decltype(launch_portable_map_digits)& launcher) {
  const RowDigits digits =
      new_digits(op, x, rows_of(result), exponents, {outputs, result.size(-1), segments});
  STD_CUDA_CHECK(launcher(x.data_ptr(), result.data_ptr(), format_of(x), function, digits.target,
                          current_stream(x)));
  return {result, digits.memory};
}

TensorAndDigits portable_map_digits(Tensor x, std::string function,
                                    std::optional<Tensor> exponents, int64_t outputs,
                                    int64_t segments) {
  constexpr const char* kOp = "portable_map_digits";
  const Function chosen = function_named(kOp, function);
  check_map(x);
  check(x.dim() >= 1, kOp, ": x must have rows.");
  const DeviceGuard guard(x.get_device_index());
  return activation_digits(kOp, x, chosen, torch::stable::empty_like(x), exponents, outputs,
                           segments, launch_portable_map_digits);
}

Tensor gated_result(const Tensor& x) {
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() /= 2;
  return torch::stable::new_empty(x, shape);
}

Tensor portable_gated(Tensor x, std::string function) {
  const Function chosen = function_named("portable_gated", function);
  check_gated(x);
  const DeviceGuard guard(x.get_device_index());
  Tensor result = gated_result(x);
  STD_CUDA_CHECK(launch_portable_gated(x.data_ptr(), result.data_ptr(), format_of(x),
                                       rows_of(result), result.size(-1), chosen,
                                       current_stream(x)));
  return result;
}

TensorAndDigits portable_gated_digits(Tensor x, std::string function,
                                      std::optional<Tensor> exponents, int64_t outputs,
                                      int64_t segments) {
  constexpr const char* kOp = "portable_gated_digits";
  const Function chosen = function_named(kOp, function);
  check_gated(x);
  const DeviceGuard guard(x.get_device_index());
  return activation_digits(kOp, x, chosen, gated_result(x), exponents, outputs, segments,
                           launch_portable_gated_digits);
}

NormParameter parameter_of(const std::optional<Tensor>& tensor) {
  if (!tensor) return {nullptr, Format::kFloat32};
  return {tensor->data_ptr(), format_of(*tensor)};
}

// The arguments of a norm, which are checked; `result` is its own.
struct NormArguments {
  const Tensor& x;
  const std::optional<Tensor>& residual;
  const std::optional<Tensor>& weight;
  const std::optional<Tensor>& bias;
  double epsilon;
  double weight_offset;
  bool is_centred;

  void check() const {
    check_norm(x, residual, weight, bias, epsilon);
    check_devices("portable_norm", "x", x,
                  {{"residual", residual}, {"weight", weight}, {"bias", bias}});
  }

  NormTask task(const Tensor& result) const {
    return {x.data_ptr(),
            residual ? residual->data_ptr() : nullptr,
            result.data_ptr(),
            format_of(x),
            rows_of(x),
            x.size(-1),
            parameter_of(weight),
            parameter_of(bias),
            static_cast<float>(weight_offset),
            static_cast<float>(epsilon),
            is_centred};
  }
};

Tensor portable_norm(Tensor x, std::optional<Tensor> residual, std::optional<Tensor> weight,
                     std::optional<Tensor> bias, double epsilon, double weight_offset,
                     bool is_centred) {
  const NormArguments norm{x, residual, weight, bias, epsilon, weight_offset, is_centred};
  norm.check();
  const DeviceGuard guard(x.get_device_index());
  Tensor result = torch::stable::empty_like(x);
  STD_CUDA_CHECK(launch_portable_norm(norm.task(result), current_stream(x)));
  return result;
}

TensorAndDigits portable_norm_digits(Tensor x, std::optional<Tensor> residual,
                                     std::optional<Tensor> weight, std::optional<Tensor> bias,
                                     double epsilon, double weight_offset, bool is_centred,
                                     std::optional<Tensor> exponents, int64_t outputs,
                                     int64_t segments) {
  const NormArguments norm{x, residual, weight, bias, epsilon, weight_offset, is_centred};
  norm.check();
  const DeviceGuard guard(x.get_device_index());
  const RowDigits digits = new_digits("portable_norm_digits", x, rows_of(x), exponents,
                                      {outputs, x.size(-1), segments});
  Tensor result = torch::stable::empty_like(x);
  STD_CUDA_CHECK(
      launch_portable_norm_digits(norm.task(result), digits.target, current_stream(x)));
  return {result, digits.memory};
}

Tensor portable_rotary_table(Tensor frequencies, int64_t positions, double scale) {
  check_rotary_table(frequencies, positions);
  const DeviceGuard guard(frequencies.get_device_index());
  const int64_t half = frequencies.size(0);
  Tensor result = torch::stable::new_empty(frequencies, {positions, 2 * half});
  STD_CUDA_CHECK(launch_portable_rotary_table(frequencies.const_data_ptr<float>(),
                                              result.mutable_data_ptr<float>(), positions, half,
                                              scale, current_stream(frequencies)));
  return result;
}

void portable_rotate(Tensor x, Tensor positions, Tensor table, bool is_interleaved) {
  check_rotate(x, positions, table);
  check_devices("portable_rotate", "x", x, {{"positions", positions}, {"table", table}});
  const DeviceGuard guard(x.get_device_index());
  const RotationTask task = rotation_task(x, positions, table, is_interleaved);
  STD_CUDA_CHECK(launch_portable_rotate(task, current_stream(x)));
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CUDA, library) {
  library.impl("portable_map", TORCH_BOX(&vllm_fork::portable_map));
  library.impl("portable_map_digits", TORCH_BOX(&vllm_fork::portable_map_digits));
  library.impl("portable_gated", TORCH_BOX(&vllm_fork::portable_gated));
  library.impl("portable_gated_digits", TORCH_BOX(&vllm_fork::portable_gated_digits));
  library.impl("portable_norm", TORCH_BOX(&vllm_fork::portable_norm));
  library.impl("portable_norm_digits", TORCH_BOX(&vllm_fork::portable_norm_digits));
  library.impl("portable_rotary_table", TORCH_BOX(&vllm_fork::portable_rotary_table));
  library.impl("portable_rotate", TORCH_BOX(&vllm_fork::portable_rotate));
}
