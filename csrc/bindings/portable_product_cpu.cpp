// The CPU implementation of the portable product's ops.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>

#include "../cpu/isa.h"
#include "../cpu/pack_weight.h"
#include "../portable/product.h"
#include "checks.h"

namespace vllm_fork {
namespace {

using torch::headeronly::ScalarType;

// The digits of so many rows are made, multiplied and forgotten: what they take stays bounded.
constexpr int64_t kRowsAtOnce = 480;

// A thread is worth waking for about this many products of two numbers.
constexpr int64_t kProductsPerTask = 512 * 1024;
constexpr int64_t kNumbersPerTask = 32 * 1024;

int64_t grain(int64_t per_task, int64_t of_one) {
  return std::max<int64_t>(1, per_task / std::max<int64_t>(1, of_one));
}

FloatType float_type(ScalarType type) {
  switch (type) {
    case ScalarType::Half: return FloatType::kHalf;
    case ScalarType::BFloat16: return FloatType::kBFloat16;
    default: return FloatType::kFloat;
  }
}

const int8_t* exponents_of(const std::optional<Tensor>& exponents) {
  return exponents ? exponents->const_data_ptr<int8_t>() : nullptr;
}

// Memory of a thread that calls, which it keeps for its next call. It only grows.
uint8_t* scratch(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<uint8_t, Free> memory;
  thread_local int64_t size = 0;
  if (bytes > size) {
    size = divide_up(bytes, kAlignment) * kAlignment;
    memory.reset(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, size)));
    if (!memory) {
      size = 0;
      throw std::bad_alloc();
    }
  }
  return memory.get();
}

template <typename Number>
void widen_all(const void* numbers, int64_t count, float* target) {
  const auto* source = static_cast<const Number*>(numbers);
  for (int64_t i = 0; i < count; ++i) target[i] = widen(source[i]);
}

// The bias as float, or null.
const float* widened_bias(const std::optional<Tensor>& bias, float* target) {
  if (!bias) return nullptr;
  switch (float_type(bias->scalar_type())) {
    case FloatType::kFloat: widen_all<float>(bias->data_ptr(), bias->size(0), target); break;
    case FloatType::kHalf: widen_all<Half>(bias->data_ptr(), bias->size(0), target); break;
    case FloatType::kBFloat16:
      widen_all<BFloat16>(bias->data_ptr(), bias->size(0), target);
      break;
  }
  return target;
}

Tensor channel_statistics(Tensor weight) {
  check_channel_statistics(weight);
  const int64_t outputs = weight.size(0);
  const int64_t inputs = weight.size(1);
  Tensor statistics = torch::stable::new_empty(weight, {inputs}, ScalarType::Long);
  auto* sums = statistics.mutable_data_ptr<int64_t>();
  std::fill(sums, sums + inputs, 0);
  const Weight numbers{weight.data_ptr(), float_type(weight.scalar_type())};
  torch::stable::parallel_for(0, inputs, grain(kNumbersPerTask, outputs),
                              [&](int64_t first, int64_t last) {
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

Tensor pack_weight(Tensor weight, std::optional<Tensor> exponents, int64_t segments) {
  check_pack_weight(weight, exponents, segments);
  const ProductShape shape{weight.size(0), weight.size(1), segments};
  Tensor packed = torch::stable::new_empty(weight, {shape.packed_bytes()}, ScalarType::Byte);
  auto* bytes = packed.mutable_data_ptr<uint8_t>();
  std::memset(bytes + shape.packed_bytes() - kPackedSlack, 0, kPackedSlack);
  const Weight numbers{weight.data_ptr(), float_type(weight.scalar_type())};
  std::atomic<int64_t> refused = -1;
  torch::stable::parallel_for(
      0, shape.panels(), grain(kNumbersPerTask, kPanel * shape.inputs),
      [&](int64_t first, int64_t last) {
        const int64_t output =
            pack_panels(shape, numbers, exponents_of(exponents), first, last, bytes);
        if (output >= 0) refused = output;
      });
  check_packed_output(refused);
  return packed;
}

Tensor unpack_weight(Tensor packed, std::optional<Tensor> exponents, int64_t outputs,
                     int64_t inputs, int64_t segments) {
  const ProductShape shape{outputs, inputs, segments};
  check_unpack_weight(packed, exponents, shape);
  Tensor weight = torch::stable::new_empty(packed, {outputs, inputs}, ScalarType::Float);
  torch::stable::parallel_for(
      0, outputs, grain(kNumbersPerTask, inputs), [&](int64_t first, int64_t last) {
        unpack_outputs(shape, packed.const_data_ptr<uint8_t>(), exponents_of(exponents), first,
                       last, weight.mutable_data_ptr<float>());
      });
  return weight;
}

// Some rows: first all of their digits, then all tiles.
void multiply_rows(const ProductKernel& kernel, const ProductShape& shape, const ProductRows& x,
                   const uint8_t* packed, uint8_t* digits, const ProductOutput& output) {
  torch::stable::parallel_for(
      0, x.rows, grain(kNumbersPerTask, shape.inputs),
      [&](int64_t first, int64_t last) { kernel.split_rows(shape, x, first, last, digits); });
  const int64_t tiles = kernel.num_tiles(shape, x.rows);
  const int64_t products = x.rows * shape.inputs * shape.panels() * kPanel / tiles;
  torch::stable::parallel_for(
      0, tiles, grain(kProductsPerTask, products), [&](int64_t first, int64_t last) {
        kernel.multiply(shape, packed, digits, x.rows, first, last, output);
      });
}

// The address `rows` rows of `size` numbers after another.
template <typename Address>
Address* after(Address* data, int64_t rows, int64_t size, FloatType type) {
  const int64_t bytes = type == FloatType::kFloat ? 4 : 2;
  using Bytes = std::conditional_t<std::is_const_v<Address>, const uint8_t, uint8_t>;
  return static_cast<Bytes*>(data) + rows * size * bytes;
}

Tensor portable_product(Tensor x, Tensor packed, std::optional<Tensor> exponents,
                        std::optional<Tensor> bias, int64_t outputs, int64_t segments,
                        ScalarType dtype) {
  const int64_t inputs = x.dim() == 2 ? x.size(1) : 0;
  const ProductShape shape{outputs, inputs, segments};
  check_portable_product(x, packed, exponents, bias, shape, dtype);
  const int64_t rows = x.size(0);
  Tensor result = torch::stable::new_empty(x, {rows, outputs}, dtype);
  if (rows == 0) return result;

  const int64_t most = std::min(rows, kRowsAtOnce);
  const ProductKernel& kernel = chosen_isa().product_kernel(rows);
  const int64_t bias_bytes = divide_up(outputs * sizeof(float), kPackedAlignment) * kPackedAlignment;
  uint8_t* memory = scratch(bias_bytes + kernel.digits_bytes(shape, most));
  const float* biases = widened_bias(bias, reinterpret_cast<float*>(memory));
  const auto* weights = packed.const_data_ptr<uint8_t>();
  const FloatType type = float_type(x.scalar_type());
  const FloatType result_type = float_type(dtype);
  for (int64_t first = 0; first < rows; first += most) {
    const void* source = after(static_cast<const void*>(x.data_ptr()), first, x.stride(0), type);
    const ProductRows some{source, x.stride(0), std::min(most, rows - first), type,
                           exponents_of(exponents)};
    const ProductOutput output{after(result.data_ptr(), first, outputs, result_type), result_type,
                               biases};
    multiply_rows(kernel, shape, some, weights, memory + bias_bytes, output);
  }
  return result;
}

// One sum of the halving tree over `count` partial sums that lie `stride` apart.
float sum_of(const float* partials, int64_t count, int64_t stride) {
  if (count == 1) return *partials;
  const int64_t half = count / 2;
  return sum_of(partials, half, stride) + sum_of(partials + half * stride, half, stride);
}

template <typename Number>
void write_sums(const Tensor& partials, const float* bias, void* target) {
  const int64_t outputs = partials.size(2);
  const int64_t size = partials.size(1) * outputs;
  const auto* numbers = partials.const_data_ptr<float>();
  auto* sums = static_cast<Number*>(target);
  torch::stable::parallel_for(0, size, kNumbersPerTask, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const float sum = sum_of(numbers + i, partials.size(0), size);
      sums[i] = narrow<Number>(bias ? sum + normal_bias(bias[i % outputs]) : sum);
    }
  });
}

Tensor sum_partials(Tensor partials, std::optional<Tensor> bias, ScalarType dtype) {
  check_sum_partials(partials, bias, dtype);
  const int64_t outputs = partials.size(2);
  Tensor result = torch::stable::new_empty(partials, {partials.size(1), outputs}, dtype);
  const float* biases =
      widened_bias(bias, reinterpret_cast<float*>(scratch(outputs * sizeof(float))));
  switch (float_type(dtype)) {
    case FloatType::kFloat: write_sums<float>(partials, biases, result.data_ptr()); break;
    case FloatType::kHalf: write_sums<Half>(partials, biases, result.data_ptr()); break;
    case FloatType::kBFloat16: write_sums<BFloat16>(partials, biases, result.data_ptr()); break;
  }
  return result;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("channel_statistics", TORCH_BOX(&vllm_fork::channel_statistics));
  library.impl("equalising_exponents", TORCH_BOX(&vllm_fork::equalising_exponents));
  library.impl("pack_weight", TORCH_BOX(&vllm_fork::pack_weight));
  library.impl("unpack_weight", TORCH_BOX(&vllm_fork::unpack_weight));
  library.impl("portable_product", TORCH_BOX(&vllm_fork::portable_product));
  library.impl("sum_partials", TORCH_BOX(&vllm_fork::sum_partials));
}
