#include "bindings/product/portable_product_checks.h"

#include <torch/csrc/stable/ops.h>

#include "bindings/rows/portable_rows.h"
#include "portable/product.h"

namespace vllm_fork {
namespace {

constexpr const char* kStatistics = "channel_statistics";
constexpr const char* kEqualise = "equalising_exponents";
constexpr const char* kPack = "pack_weight";
constexpr const char* kRepack = "repack_weight";
constexpr const char* kUnpack = "unpack_weight";
constexpr const char* kProduct = "portable_product";
constexpr const char* kDigitsProduct = "portable_digits_product";
constexpr const char* kPartials = "sum_partials";

const torch::stable::Device kCpu(torch::headeronly::DeviceType::CPU);

// Tensors are given as such or as optional ones, which pass if they are not there.
void check_same_device(const char* op, const char* name, const std::optional<Tensor>& tensor,
                       const Tensor& reference) {
  if (!tensor) return;
  check(tensor->device() == reference.device(), op, ": ", name,
        " must be on the same device as the other tensors.");
}

bool is_power_up_to_8(int64_t count) {
  return count == 1 || count == 2 || count == 4 || count == 8;
}

void check_weight(const char* op, const Tensor& weight) {
  check_portable_type(op, "weight", weight);
  check_dim(op, "weight", weight, 2);
  check_contiguous(op, "weight", weight);
  check(weight.size(0) > 0 && weight.size(1) > 0, op, ": weight must not be empty, but is ",
        weight.size(0), " x ", weight.size(1), ".");
}

void check_exponents(const char* op, const std::optional<Tensor>& exponents, int64_t inputs) {
  if (!exponents) return;
  check_entries(op, "exponents", *exponents, ScalarType::Char, inputs, "input channels");
}

// Only where a weight is packed or unpacked: a product takes the exponents of one that was.
void check_exponent_values(const char* op, const std::optional<Tensor>& exponents) {
  if (!exponents) return;
  const Tensor on_cpu = torch::stable::to(*exponents, kCpu);
  const auto* values = on_cpu.const_data_ptr<int8_t>();
  for (int64_t k = 0; k < on_cpu.size(0); ++k) {
    check(-kMostEqualised <= values[k] && values[k] <= kMostEqualised, op, ": exponents[", k,
          "] must be in -", kMostEqualised, "..", kMostEqualised, ", but is ", int{values[k]}, ".");
  }
}

void check_bias(const char* op, const std::optional<Tensor>& bias, int64_t outputs) {
  if (!bias) return;
  check_portable_type(op, "bias", *bias);
  check_dim(op, "bias", *bias, 1);
  check_contiguous(op, "bias", *bias);
  check_length(op, "bias", *bias, outputs, "outputs");
}

void check_result_type(const char* op, ScalarType type) {
  check(is_portable_type(type), op, ": dtype must be float32, bfloat16 or float16, but is ",
        dtype_name(type), ".");
}

void check_shape(const char* op, const ProductShape& shape) {
  check(shape.outputs > 0, op, ": outputs must be above 0, but is ", shape.outputs, ".");
  check(0 < shape.inputs && shape.inputs <= kMostInputs, op,
        ": the number of input channels must be in 1..", kMostInputs, ", but is ", shape.inputs,
        ".");
  check(is_power_up_to_8(shape.segments), op, ": segments must be 1, 2, 4 or 8, but is ",
        shape.segments, ".");
  check(shape.inputs % shape.segments == 0, op, ": segments must divide the ", shape.inputs,
        " input channels, but is ", shape.segments, ".");
}

void check_alignment(const char* op, const char* name, const Tensor& tensor, int64_t bytes) {
  check(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % bytes == 0, op, ": ", name,
        " must start at a multiple of ", bytes, " bytes.");
}

void check_packed(const char* op, const Tensor& packed, const ProductShape& shape,
                  PackedBytes packed_bytes) {
  check_shape(op, shape);
  check_entries(op, "packed", packed, ScalarType::Byte, packed_bytes(shape),
                "bytes of this shape");
  check_alignment(op, "packed", packed, kPackedAlignment);
}

void check_what_is_packed(const char* op, const Tensor& weight,
                          const std::optional<Tensor>& exponents, int64_t segments) {
  check_weight(op, weight);
  check_shape(op, ProductShape{weight.size(0), weight.size(1), segments});
  check_exponents(op, exponents, weight.size(1));
  check_same_device(op, "exponents", exponents, weight);
  check_exponent_values(op, exponents);
}

void check_rows(const char* op, int64_t rows, int64_t most_rows) {
  check(0 < rows && rows <= most_rows, op, ": rows must be in 1..", most_rows, ", but are ", rows,
        ".");
}

}  // namespace

void check_channel_statistics(const Tensor& weight) { check_weight(kStatistics, weight); }

void check_equalising_exponents(const Tensor& statistics) {
  check_dtype(kEqualise, "statistics", statistics, ScalarType::Long);
  check_dim(kEqualise, "statistics", statistics, 1);
  check_contiguous(kEqualise, "statistics", statistics);
  const Tensor on_cpu = torch::stable::to(statistics, kCpu);
  const auto* values = on_cpu.const_data_ptr<int64_t>();
  for (int64_t k = 0; k < statistics.size(0); ++k) {
    check(values[k] >= 0, kEqualise, ": statistics[", k, "] must not be negative, but is ",
          values[k], ".");
  }
}

void check_pack_weight(const Tensor& weight, const std::optional<Tensor>& exponents,
                       int64_t segments) {
  check_what_is_packed(kPack, weight, exponents, segments);
}

void check_repack_weight(const Tensor& packed, const Tensor& weight,
                         const std::optional<Tensor>& exponents, int64_t segments,
                         PackedBytes packed_bytes) {
  check_what_is_packed(kRepack, weight, exponents, segments);
  check_packed(kRepack, packed, {weight.size(0), weight.size(1), segments}, packed_bytes);
  check_same_device(kRepack, "packed", packed, weight);
}

void check_unpack_weight(const Tensor& packed, const std::optional<Tensor>& exponents,
                         const ProductShape& shape, PackedBytes packed_bytes) {
  check_packed(kUnpack, packed, shape, packed_bytes);
  check_same_device(kUnpack, "exponents", exponents, packed);
  check_exponents(kUnpack, exponents, shape.inputs);
  check_exponent_values(kUnpack, exponents);
}

void check_portable_product(const Tensor& x, const Tensor& packed,
                            const std::optional<Tensor>& exponents,
                            const std::optional<Tensor>& bias, const ProductShape& shape,
                            ScalarType dtype, PackedBytes packed_bytes) {
  check_portable_type(kProduct, "x", x);
  check_dim(kProduct, "x", x, 2);
  check(x.size(1) <= 1 || x.stride(1) == 1, kProduct,
        ": the last dimension of x must be contiguous, but has stride ", x.stride(1), ".");
  check_packed(kProduct, packed, shape, packed_bytes);
  check_same_device(kProduct, "packed", packed, x);
  check_same_device(kProduct, "exponents", exponents, x);
  check_same_device(kProduct, "bias", bias, x);
  check_exponents(kProduct, exponents, shape.inputs);
  check_bias(kProduct, bias, shape.outputs);
  check_result_type(kProduct, dtype);
}

void check_digit_rows(const char* op, const Tensor& x, int64_t rows, int64_t most_rows,
                      const std::optional<Tensor>& exponents, const ProductShape& shape) {
  check_rows(op, rows, most_rows);
  check_shape(op, shape);
  check_same_device(op, "exponents", exponents, x);
  check_exponents(op, exponents, shape.inputs);
}

void check_digits_product(const Tensor& packed, const std::optional<Tensor>& bias, int64_t rows,
                          int64_t most_rows, const ProductShape& shape, ScalarType dtype,
                          PackedBytes packed_bytes) {
  check_rows(kDigitsProduct, rows, most_rows);
  check_packed(kDigitsProduct, packed, shape, packed_bytes);
  check_same_device(kDigitsProduct, "bias", bias, packed);
  check_bias(kDigitsProduct, bias, shape.outputs);
  check_result_type(kDigitsProduct, dtype);
}

void check_digits(const Tensor& digits, const Tensor& packed, int64_t bytes) {
  check_same_device(kDigitsProduct, "digits", digits, packed);
  check_entries(kDigitsProduct, "digits", digits, ScalarType::Byte, bytes,
                "bytes that digits of so many rows for this weight take");
  constexpr int64_t kCopied = 16;  // at once, to shared memory
  check_alignment(kDigitsProduct, "digits", digits, kCopied);
}

void check_sum_partials(const Tensor& partials, const std::optional<Tensor>& bias,
                        ScalarType dtype) {
  check_dtype(kPartials, "partials", partials, ScalarType::Float);
  check_dim(kPartials, "partials", partials, 3);
  check_contiguous(kPartials, "partials", partials);
  check(is_power_up_to_8(partials.size(0)), kPartials,
        ": partials must be 1, 2, 4 or 8 sums, but are ", partials.size(0), ".");
  check_bias(kPartials, bias, partials.size(2));
  check_same_device(kPartials, "bias", bias, partials);
  check_result_type(kPartials, dtype);
}

void check_packed_output(int64_t output) {
  check(output < 0, kPack, ": weight[", output,
        "] has a number that is not finite, or that is too great (about 2^45 when equalised).");
}

}  // namespace vllm_fork
