// Where sums of a product go: docs/numerics/products.md, section 6, steps 3 and 4.
#pragma once

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/numbers.cuh"
#include "cuda/product/product.h"
#include "portable/product.h"

namespace vllm_fork {

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
