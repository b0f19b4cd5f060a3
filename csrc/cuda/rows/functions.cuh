// Functions of each number, and gated activations.
//
// Specification: docs/numerics/operations.md, "Activations".
#pragma once

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/numbers.cuh"
#include "cuda/product/quantise_rows.cuh"
#include "cuda/rows/functions.h"
#include "portable/activations.h"

namespace vllm_fork {

constexpr int kMapThreads = 256;
constexpr int kMapNumbers = 4;  // of a thread
constexpr int64_t kMapPiece = kMapThreads * kMapNumbers;

// All threads take the same way.
__device__ __forceinline__ float function_of(Function function, float x) {
  switch (function) {
    case Function::kExp: return exponential(x);
    case Function::kExp2: return exponential2(x);
    case Function::kLog: return logarithm(x);
    case Function::kTanh: return hyperbolic_tangent(x);
    case Function::kSigmoid: return sigmoid(x);
    case Function::kErf: return error_function(x);
    case Function::kRelu: return relu(x);
    case Function::kSquaredRelu: return squared_relu(x);
    case Function::kSilu: return silu(x);
    case Function::kQuickGelu: return quick_gelu(x);
    case Function::kGelu: return gelu(x);
    case Function::kGeluTanh: return gelu_tanh(x);
  }
  return x;
}

template <typename Number>
__global__ void __launch_bounds__(kMapThreads)
    map_kernel(const Number* x, Number* result, int64_t count, Function function) {
  wait_for_earlier_kernels();
  const int64_t first = int64_t{blockIdx.x} * kMapPiece + threadIdx.x;
  for (int k = 0; k < kMapNumbers; ++k) {
    const int64_t i = first + k * kMapThreads;
    if (i < count) result[i] = narrow<Number>(function_of(function, widen(x[i])));
  }
}

// Block b handles piece b % pieces of row b / pieces.
template <typename Number>
__global__ void __launch_bounds__(kMapThreads)
    gated_kernel(const Number* x, Number* result, int64_t half, int64_t pieces,
                 Function function) {
  wait_for_earlier_kernels();
  const int64_t row = blockIdx.x / pieces;
  const int64_t first = blockIdx.x % pieces * kMapPiece + threadIdx.x;
  const Number* gates = x + row * 2 * half;
  for (int k = 0; k < kMapNumbers; ++k) {
    const int64_t j = first + k * kMapThreads;
    if (j >= half) return;
    const float gate = function_of(function, widen(gates[j]));
    result[row * half + j] = narrow<Number>(gate * widen(gates[half + j]));
  }
}

// Rounds activations, writes the first `count` of them, and leaves zeros in place of the others.
template <typename Number>
__device__ __forceinline__ void keep_values(Number* result, int count, float (&values)[kOctet]) {
  Number numbers[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    numbers[i] = narrow<Number>(values[i]);
    values[i] = i < count ? widen(numbers[i]) : 0.0f;
  }
  write_octet(result, count, numbers);
}

// Rows of functions of numbers, as quantise_rows takes rows: they are computed when they are read,
// and written, too.
template <typename Number>
struct MappedRows {
  const Number* x;
  Number* result;
  int64_t size;
  Function function;

  __device__ __forceinline__ void read(int64_t row, int64_t channel, int count,
                                       float (&values)[kOctet]) const {
    read_values(x + row * size + channel, count, values);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) values[i] = function_of(function, values[i]);
    keep_values(result + row * size + channel, count, values);
  }
};

// The same of gated activations.
template <typename Number>
struct GatedRows {
  const Number* x;
  Number* result;
  int64_t half;
  Function function;

  __device__ __forceinline__ void read(int64_t row, int64_t channel, int count,
                                       float (&values)[kOctet]) const {
    const Number* gates = x + row * 2 * half + channel;
    float others[kOctet];
    read_values(gates, count, values);
    read_values(gates + half, count, others);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) values[i] = function_of(function, values[i]) * others[i];
    keep_values(result + row * half + channel, count, values);
  }
};

cudaError_t launch_portable_map(const void* x, void* result, Format format, int64_t count,
                                Function function, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned int>((count + kMapPiece - 1) / kMapPiece));
  return with_number(format, [&](auto number) {
    using Number = decltype(number);
    return launch_dependent(grid, kMapThreads, 0, stream, map_kernel<Number>,
                            static_cast<const Number*>(x), static_cast<Number*>(result), count,
                            function);
  });
}

cudaError_t launch_portable_gated(const void* x, void* result, Format format, int64_t rows,
                                  int64_t half, Function function, cudaStream_t stream) {
  if (rows == 0 || half == 0) return cudaSuccess;
  const int64_t pieces = (half + kMapPiece - 1) / kMapPiece;
  const dim3 grid(static_cast<unsigned int>(rows * pieces));
  return with_number(format, [&](auto number) {
    using Number = decltype(number);
    return launch_dependent(grid, kMapThreads, 0, stream, gated_kernel<Number>,
                            static_cast<const Number*>(x), static_cast<Number*>(result), half,
                            pieces, function);
  });
}

template <template <typename> class Rows>
cudaError_t launch_activation_digits(const void* x, void* result, Format format, Function function,
                                     const DigitTarget& target, cudaStream_t stream) {
  if (target.rows == 0) return cudaSuccess;
  return with_number(format, [&](auto number) {
    using Number = decltype(number);
    const Rows<Number> rows{static_cast<const Number*>(x), static_cast<Number*>(result),
                            target.shape.inputs, function};
    return quantise_rows(target, rows, stream);
  });
}

cudaError_t launch_portable_map_digits(const void* x, void* result, Format format,
                                       Function function, const DigitTarget& target,
                                       cudaStream_t stream) {
  return launch_activation_digits<MappedRows>(x, result, format, function, target, stream);
}

cudaError_t launch_portable_gated_digits(const void* x, void* result, Format format,
                                         Function function, const DigitTarget& target,
                                         cudaStream_t stream) {
  return launch_activation_digits<GatedRows>(x, result, format, function, target, stream);
}

}  // namespace vllm_fork
