// The sums of a product's partial sums, one of each rank: docs/numerics/products.md, section 6.
#pragma once

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/device.cuh"
#include "cuda/product/product_result.cuh"
#include "portable/product.h"

namespace vllm_fork {

inline constexpr int kSumThreads = 256;

// A thread a result.
__global__ void __launch_bounds__(kSumThreads)
    sum_partials_kernel(const float* partials, int64_t parts, int64_t rows, int64_t outputs,
                        ProductResult result) {
  wait_for_earlier_kernels();
  const int64_t index = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (index >= rows * outputs) return;
  const float sum = sum_of_halves(partials + index, rows * outputs, parts);
  write_result(result, index, sum, index % outputs);
}

inline cudaError_t sum_all_partials(const float* partials, int64_t parts, int64_t rows,
                                    int64_t outputs, const ProductResult& result,
                                    cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned int>((rows * outputs + kSumThreads - 1) / kSumThreads));
  return launch_dependent(grid, dim3(kSumThreads), 0, stream, sum_partials_kernel, partials, parts,
                          rows, outputs, result);
}

}  // namespace vllm_fork
