// Where sums of a product go: docs/numerics/products.md, section 6, steps 3 and 4.
#pragma once

#include "../portable/number_types.h"
#include "../portable/product.h"
#include "device.cuh"
#include "portable_product.h"

namespace vllm_fork {

__device__ __forceinline__ float read_number(const void* data, Format format, int64_t index) {
  switch (format) {
    case Format::kFloat16: return widen(static_cast<const Float16*>(data)[index]);
    case Format::kBfloat16: return widen(static_cast<const Bfloat16*>(data)[index]);
    default: return static_cast<const float*>(data)[index];
  }
}

__device__ __forceinline__ void write_number(void* data, Format format, int64_t index,
                                             float value) {
  switch (format) {
    case Format::kFloat16: static_cast<Float16*>(data)[index] = narrow<Float16>(value); break;
    case Format::kBfloat16: static_cast<Bfloat16*>(data)[index] = narrow<Bfloat16>(value); break;
    default: static_cast<float*>(data)[index] = narrow<float>(value);
  }
}

// The sum of 1, 2, 4 or 8 sums, which lie `stride` apart, by a tree of halves.
__device__ __forceinline__ float sum_of_halves(const float* sums, int64_t stride, int64_t count) {
  switch (count) {
    case 1: return sum_of_halves<1>(sums, stride);
    case 2: return sum_of_halves<2>(sums, stride);
    case 4: return sum_of_halves<4>(sums, stride);
    default: return sum_of_halves<8>(sums, stride);
  }
}

// Adds the bias to the sum of an output, and rounds it.
__device__ __forceinline__ void write_result(const ProductResult& result, int64_t index, float sum,
                                             int64_t output) {
  if (result.bias != nullptr) {
    sum = sum + normal_bias(read_number(result.bias, result.bias_format, output));
  }
  write_number(result.data, result.format, index, sum);
}

}  // namespace vllm_fork
