// The CPU implementation of the portable product's ops.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

#include "bindings/portable_operators_cpu.h"
#include "bindings/product/portable_product_checks.h"
#include "bindings/rows/portable_rows.h"
#include "cpu/team/team.h"
#include "cpu/isa.h"
#include "cpu/portable/product/pack_weight.h"
#include "portable/number_types.h"
#include "portable/product.h"

namespace vllm_fork {
namespace {

// The digits of so many rows are made, multiplied and forgotten: what they take stays bounded.
constexpr int64_t kRowsAtOnce = 480;

// A thread is worth waking for about this many products of two numbers.
constexpr int64_t kProductsPerTask = 512 * 1024;

// Calls work(first, last) for parts of 0..count, each of which is worth a thread; one of `count`
// things is `of_one` of the `per_task` things that are.
template <typename Work>
void share_out(int64_t count, int64_t per_task, int64_t of_one, const Work& work) {
  const int64_t grain = std::max<int64_t>(1, per_task / std::max<int64_t>(1, of_one));
  share_work(0, count, grain, [&](int64_t first, int64_t last) {
    const DefaultFloatEnvironment environment;
    work(first, last);
  });
}

Format format_named(ScalarType type) {
  if (type == ScalarType::Float) return Format::kFloat32;
  return type == ScalarType::BFloat16 ? Format::kBfloat16 : Format::kFloat16;
}

const int8_t* exponents_of(const std::optional<Tensor>& exponents) {
  return exponents ? exponents->const_data_ptr<int8_t>() : nullptr;
}

int64_t packed_bytes(const ProductShape& shape) { return shape.packed_bytes(); }

Tensor channel_statistics(Tensor weight) {
  check_channel_statistics(weight);
  const int64_t outputs = weight.size(0);
  const int64_t inputs = weight.size(1);
  Tensor statistics = torch::stable::new_empty(weight, {inputs}, ScalarType::Long);
  auto* sums = statistics.mutable_data_ptr<int64_t>();
  std::fill(sums, sums + inputs, 0);
  const WeightNumbers numbers{weight.data_ptr(), format_of(weight)};
  share_out(inputs, kNumbersPerTask, outputs, [&](int64_t first, int64_t last) {
    add_channel_statistics(outputs, inputs, numbers, first, last, sums);
  });
  return statistics;
}

Tensor equalising_exponents(Tensor statistics) {
  check_equalising_exponents(statistics);
  const int64_t inputs = statistics.size(0);
  Tensor exponents = torch::stable::new_empty(statistics, {inputs}, ScalarType::Char);
  equalise_channels(statistics.const_data_ptr<int64_t>(), inputs,
                    exponents.mutable_data_ptr<int8_t>());
  return exponents;
}

void pack_into(uint8_t* bytes, const Tensor& weight, const std::optional<Tensor>& exponents,
               int64_t segments) {
  const ProductShape shape{weight.size(0), weight.size(1), segments};
  std::memset(bytes + shape.packed_bytes() - kPackedSlack, 0, kPackedSlack);
  const WeightNumbers numbers{weight.data_ptr(), format_of(weight)};
  std::atomic<int64_t> refused = -1;
  share_out(shape.panels(), kNumbersPerTask, kPanel * shape.inputs,
            [&](int64_t first, int64_t last) {
              const int64_t output =
                  pack_panels(shape, numbers, exponents_of(exponents), first, last, bytes);
              if (output >= 0) refused = output;
            });
  check_packed_output(refused);
}

Tensor pack_weight(Tensor weight, std::optional<Tensor> exponents, int64_t segments) {
  check_pack_weight(weight, exponents, segments);
  const ProductShape shape{weight.size(0), weight.size(1), segments};
  Tensor packed = torch::stable::new_empty(weight, {shape.packed_bytes()}, ScalarType::Byte);
  pack_into(packed.mutable_data_ptr<uint8_t>(), weight, exponents, segments);
  return packed;
}

void repack_weight(Tensor packed, Tensor weight, std::optional<Tensor> exponents,
                   int64_t segments) {
  check_repack_weight(packed, weight, exponents, segments, packed_bytes);
  pack_into(packed.mutable_data_ptr<uint8_t>(), weight, exponents, segments);
}

Tensor unpack_weight(Tensor packed, std::optional<Tensor> exponents, int64_t outputs,
                     int64_t inputs, int64_t segments) {
  const ProductShape shape{outputs, inputs, segments};
  check_unpack_weight(packed, exponents, shape, packed_bytes);
  Tensor weight = torch::stable::new_empty(packed, {outputs, inputs}, ScalarType::Float);
  share_out(outputs, kNumbersPerTask, inputs, [&](int64_t first, int64_t last) {
    unpack_outputs(shape, packed.const_data_ptr<uint8_t>(), exponents_of(exponents), first, last,
                   weight.mutable_data_ptr<float>());
  });
  return weight;
}

// Writes the bias as float32 to the target and returns it; null if there is none.
const float* widened(const std::optional<Tensor>& bias, float* target) {
  if (!bias) return nullptr;
  Numbers(*bias).read(0, target, bias->size(0));
  return target;
}

// Some rows: first all of their digits, then all tiles.
void multiply_rows(const ProductKernel& kernel, const ProductShape& shape, const ProductRows& x,
                   const uint8_t* packed, uint8_t* digits, const ProductOutput& output) {
  share_out(x.rows, kNumbersPerTask, shape.inputs, [&](int64_t first, int64_t last) {
    kernel.split_rows(shape, x, first, last, digits);
  });
  const int64_t tiles = kernel.num_tiles(shape, x.rows);
  const int64_t products = x.rows * shape.inputs * shape.panels() * kPanel / tiles;
  share_out(tiles, kProductsPerTask, products, [&](int64_t first, int64_t last) {
    kernel.multiply(shape, packed, digits, x.rows, first, last, output);
  });
}

// The arguments are checked.
void multiply_checked(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& exponents,
                      const std::optional<Tensor>& bias, const ProductShape& shape,
                      const Tensor& result) {
  const int64_t rows = x.size(0);
  const int64_t outputs = shape.outputs;
  if (rows == 0) return;
  const DefaultFloatEnvironment environment;
  const int64_t most = std::min(rows, kRowsAtOnce);
  const ProductKernel& kernel = chosen_isa().product_kernel(rows);
  const int64_t bias_bytes = divide_up(outputs, kPanel) * kPanel * sizeof(float);
  auto* memory = reinterpret_cast<uint8_t*>(
      scratch_bytes(bias_bytes + kernel.digits_bytes(shape, most)));
  const float* biases = widened(bias, reinterpret_cast<float*>(memory));
  const Numbers source(x);
  const Numbers target(result);
  for (int64_t first = 0; first < rows; first += most) {
    const ProductRows some{source.at(first * x.stride(0)), x.stride(0),
                           std::min(most, rows - first), source.format, exponents_of(exponents)};
    const ProductOutput output{target.at(first * outputs), target.format, biases};
    multiply_rows(kernel, shape, some, packed.const_data_ptr<uint8_t>(), memory + bias_bytes,
                  output);
  }
}

Tensor portable_product(Tensor x, Tensor packed, std::optional<Tensor> exponents,
                        std::optional<Tensor> bias, int64_t outputs, int64_t segments,
                        ScalarType dtype) {
  const int64_t inputs = x.dim() == 2 ? x.size(1) : 0;
  const ProductShape shape{outputs, inputs, segments};
  check_portable_product(x, packed, exponents, bias, shape, dtype, packed_bytes);
  Tensor result = torch::stable::new_empty(x, {x.size(0), outputs}, dtype);
  multiply_checked(x, packed, exponents, bias, shape, result);
  return result;
}

template <typename Number, int kCount>
void write_sums(const float* partials, int64_t rows, int64_t outputs, const float* bias,
                Number* target) {
  share_out(rows, kNumbersPerTask, outputs, [&](int64_t first, int64_t last) {
    for (int64_t i = first * outputs; i < last * outputs; i += outputs) {
      for (int64_t n = 0; n < outputs; ++n) {
        const float sum = sum_of_halves<kCount>(partials + i + n, rows * outputs);
        target[i + n] = narrow<Number>(bias ? sum + normal_bias(bias[n]) : sum);
      }
    }
  });
}

template <typename Number>
void write_sums(const Tensor& partials, const float* bias, void* target) {
  const auto* sums = partials.const_data_ptr<float>();
  auto* numbers = static_cast<Number*>(target);
  const int64_t rows = partials.size(1);
  const int64_t outputs = partials.size(2);
  switch (partials.size(0)) {
    case 1: return write_sums<Number, 1>(sums, rows, outputs, bias, numbers);
    case 2: return write_sums<Number, 2>(sums, rows, outputs, bias, numbers);
    case 4: return write_sums<Number, 4>(sums, rows, outputs, bias, numbers);
    default: return write_sums<Number, 8>(sums, rows, outputs, bias, numbers);
  }
}

Tensor sum_partials(Tensor partials, std::optional<Tensor> bias, ScalarType dtype) {
  check_sum_partials(partials, bias, dtype);
  const int64_t outputs = partials.size(2);
  Tensor result = torch::stable::new_empty(partials, {partials.size(1), outputs}, dtype);
  const DefaultFloatEnvironment environment;
  const float* biases = widened(bias, scratch_floats(outputs));
  switch (format_named(dtype)) {
    case Format::kFloat32: write_sums<float>(partials, biases, result.data_ptr()); break;
    case Format::kFloat16: write_sums<Float16>(partials, biases, result.data_ptr()); break;
    case Format::kBfloat16: write_sums<Bfloat16>(partials, biases, result.data_ptr()); break;
  }
  return result;
}

}  // namespace

void multiply_into(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& exponents,
                   const std::optional<Tensor>& bias, int64_t segments, const Tensor& result) {
  const ProductShape shape{result.size(1), x.size(1), segments};
  check_portable_product(x, packed, exponents, bias, shape, result.scalar_type(), packed_bytes);
  multiply_checked(x, packed, exponents, bias, shape, result);
}

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("channel_statistics", TORCH_BOX(&vllm_fork::channel_statistics));
  library.impl("equalising_exponents", TORCH_BOX(&vllm_fork::equalising_exponents));
  library.impl("pack_weight", TORCH_BOX(&vllm_fork::pack_weight));
  library.impl("repack_weight", TORCH_BOX(&vllm_fork::repack_weight));
  library.impl("unpack_weight", TORCH_BOX(&vllm_fork::unpack_weight));
  library.impl("portable_product", TORCH_BOX(&vllm_fork::portable_product));
  library.impl("sum_partials", TORCH_BOX(&vllm_fork::sum_partials));
}
