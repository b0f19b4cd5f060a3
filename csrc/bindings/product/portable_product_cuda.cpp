// The CUDA implementation of the portable product's ops: the torch side of cuda/product/product.cu.
//
// What is computed for every token, the products and sum_partials, is queued and not waited for.
// What is done once to a weight waits where its values are checked.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "bindings/cuda_device.h"
#include "bindings/cuda_tensor_cores.h"
#include "bindings/formats.h"
#include "bindings/product/portable_product_checks.h"
#include "bindings/product/portable_product_cuda.h"
#include "cpu/portable/product/pack_weight.h"
#include "cuda/product/product.h"

namespace vllm_fork {
namespace {

using torch::headeronly::DeviceType;
using torch::stable::Device;

// The tensor's GPU is the current one.
Multiprocessors multiprocessors_of(const Tensor& tensor) {
  const GpuFacts gpu = facts_of(tensor);
  return {
      .count = gpu.multiprocessors,
      .shared_bytes = gpu.shared_bytes,
      .cores = tensor_cores_of(tensor),
      .splits = 0,
  };
}

Tensor on_cpu(const Tensor& tensor) { return torch::stable::to(tensor, Device(DeviceType::CPU)); }

const int8_t* exponents_of(const std::optional<Tensor>& exponents) {
  return exponents ? exponents->const_data_ptr<int8_t>() : nullptr;
}

ProductResult result_in(const Tensor& result, const std::optional<Tensor>& bias) {
  return {result.data_ptr(), format_of(result), bias ? bias->data_ptr() : nullptr,
          bias ? format_of(*bias) : Format::kFloat32};
}

Tensor channel_statistics(Tensor weight) {
  check_channel_statistics(weight);
  const DeviceGuard guard(weight.get_device_index());
  Tensor statistics = torch::stable::new_zeros(weight, {weight.size(1)}, ScalarType::Long);
  STD_CUDA_CHECK(launch_channel_statistics(
      {weight.data_ptr(), format_of(weight)}, weight.size(0), weight.size(1),
      reinterpret_cast<unsigned long long*>(statistics.mutable_data_ptr<int64_t>()),
      current_stream(weight)));
  return statistics;
}

// On the CPU: a few numbers, whose values have to be looked at there anyway.
Tensor equalising_exponents(Tensor statistics) {
  check_equalising_exponents(statistics);
  const Tensor values = on_cpu(statistics);
  const Tensor exponents = torch::stable::new_empty(values, {values.size(0)}, ScalarType::Char);
  equalise_channels(values.const_data_ptr<int64_t>(), values.size(0),
                    exponents.mutable_data_ptr<int8_t>());
  return torch::stable::to(exponents, statistics.device());
}

void pack_into(uint8_t* packed, const Tensor& weight, const std::optional<Tensor>& exponents,
               int64_t segments) {
  const ProductShape shape{weight.size(0), weight.size(1), segments};
  Tensor refused = torch::stable::new_empty(weight, {1}, ScalarType::Long);
  refused = torch::stable::fill_(refused, -1);
  STD_CUDA_CHECK(launch_pack_weight(
      shape, {weight.data_ptr(), format_of(weight)}, exponents_of(exponents), packed,
      reinterpret_cast<unsigned long long*>(refused.mutable_data_ptr<int64_t>()),
      current_stream(weight)));
  check_packed_output(*on_cpu(refused).const_data_ptr<int64_t>());
}

Tensor pack_weight(Tensor weight, std::optional<Tensor> exponents, int64_t segments) {
  check_pack_weight(weight, exponents, segments);
  const DeviceGuard guard(weight.get_device_index());
  const ProductShape shape{weight.size(0), weight.size(1), segments};
  Tensor packed =
      torch::stable::new_empty(weight, {packed_weight_bytes(shape)}, ScalarType::Byte);
  pack_into(packed.mutable_data_ptr<uint8_t>(), weight, exponents, segments);
  return packed;
}

void repack_weight(Tensor packed, Tensor weight, std::optional<Tensor> exponents,
                   int64_t segments) {
  check_repack_weight(packed, weight, exponents, segments, packed_weight_bytes);
  const DeviceGuard guard(weight.get_device_index());
  pack_into(packed.mutable_data_ptr<uint8_t>(), weight, exponents, segments);
}

Tensor unpack_weight(Tensor packed, std::optional<Tensor> exponents, int64_t outputs,
                     int64_t inputs, int64_t segments) {
  const ProductShape shape{outputs, inputs, segments};
  check_unpack_weight(packed, exponents, shape, packed_weight_bytes);
  const DeviceGuard guard(packed.get_device_index());
  Tensor weight = torch::stable::new_empty(packed, {outputs, inputs}, ScalarType::Float);
  STD_CUDA_CHECK(launch_unpack_weight(shape, packed.const_data_ptr<uint8_t>(),
                                      exponents_of(exponents), weight.mutable_data_ptr<float>(),
                                      current_stream(packed)));
  return weight;
}

Tensor portable_product(Tensor x, Tensor packed, std::optional<Tensor> exponents,
                        std::optional<Tensor> bias, int64_t outputs, int64_t segments,
                        ScalarType dtype) {
  const int64_t inputs = x.dim() == 2 ? x.size(1) : 0;
  const ProductShape shape{outputs, inputs, segments};
  check_portable_product(x, packed, exponents, bias, shape, dtype, packed_weight_bytes);
  const int64_t rows = x.size(0);
  Tensor result = torch::stable::new_empty(x, {rows, outputs}, dtype);
  if (rows == 0) return result;

  const DeviceGuard guard(x.get_device_index());
  const Multiprocessors gpu = multiprocessors_of(x);
  Tensor workspace =
      new_workspace(x, product_workspace_bytes(shape, rows, gpu), ScalarType::Byte);
  const ProductRows numbers{x.data_ptr(), x.stride(0), rows, format_of(x),
                            exponents_of(exponents)};
  STD_CUDA_CHECK(launch_portable_product(shape, numbers, packed.const_data_ptr<uint8_t>(),
                                         workspace.mutable_data_ptr<uint8_t>(),
                                         result_in(result, bias), gpu, current_stream(x)));
  return result;
}

Tensor portable_digits_product(Tensor digits, Tensor packed, std::optional<Tensor> bias,
                               int64_t rows, int64_t outputs, int64_t inputs, int64_t segments,
                               ScalarType dtype) {
  const ProductShape shape{outputs, inputs, segments};
  check_digits_product(packed, bias, rows, kMostRowsAtOnce, shape, dtype, packed_weight_bytes);
  const DeviceGuard guard(packed.get_device_index());
  const Multiprocessors gpu = multiprocessors_of(packed);
  check_digits(digits, packed, product_workspace_bytes(shape, rows, gpu));
  Tensor result = torch::stable::new_empty(packed, {rows, outputs}, dtype);
  STD_CUDA_CHECK(launch_product_of_digits(shape, rows, packed.const_data_ptr<uint8_t>(),
                                          digits.mutable_data_ptr<uint8_t>(),
                                          result_in(result, bias), gpu, current_stream(packed)));
  return result;
}

Tensor sum_partials(Tensor partials, std::optional<Tensor> bias, ScalarType dtype) {
  check_sum_partials(partials, bias, dtype);
  const DeviceGuard guard(partials.get_device_index());
  const int64_t rows = partials.size(1);
  const int64_t outputs = partials.size(2);
  Tensor result = torch::stable::new_empty(partials, {rows, outputs}, dtype);
  STD_CUDA_CHECK(launch_sum_partials(partials.const_data_ptr<float>(), partials.size(0), rows,
                                     outputs, result_in(result, bias), current_stream(partials)));
  return result;
}

}  // namespace

RowDigits new_digits(const char* op, const Tensor& x, int64_t rows,
                     const std::optional<Tensor>& exponents, const ProductShape& shape) {
  check_digit_rows(op, x, rows, kMostRowsAtOnce, exponents, shape);
  const Multiprocessors gpu = multiprocessors_of(x);
  Tensor memory = torch::stable::new_empty(x, {product_workspace_bytes(shape, rows, gpu)},
                                           ScalarType::Byte);
  auto* start = memory.mutable_data_ptr<uint8_t>();
  return {memory, digit_target(shape, rows, exponents_of(exponents), start, gpu)};
}

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CUDA, library) {
  library.impl("channel_statistics", TORCH_BOX(&vllm_fork::channel_statistics));
  library.impl("equalising_exponents", TORCH_BOX(&vllm_fork::equalising_exponents));
  library.impl("pack_weight", TORCH_BOX(&vllm_fork::pack_weight));
  library.impl("repack_weight", TORCH_BOX(&vllm_fork::repack_weight));
  library.impl("unpack_weight", TORCH_BOX(&vllm_fork::unpack_weight));
  library.impl("portable_product", TORCH_BOX(&vllm_fork::portable_product));
  library.impl("portable_digits_product", TORCH_BOX(&vllm_fork::portable_digits_product));
  library.impl("sum_partials", TORCH_BOX(&vllm_fork::sum_partials));
}
