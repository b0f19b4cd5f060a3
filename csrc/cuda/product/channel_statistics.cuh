// What the magnitudes of a weight's input channels are: docs/numerics/products.md, section 3.
#pragma once

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/tickets.cuh"
#include "portable/number_types.h"
#include "portable/product.h"
#include "portable/product_layout.h"

namespace vllm_fork {

inline constexpr int kStatisticThreads = 256;
inline constexpr int64_t kStatisticRows = 256;  // of a block of threads

// A thread a channel, and some rows. Sums of integers have no order.
template <typename Number>
__global__ void __launch_bounds__(kStatisticThreads)
    add_statistics_kernel(const Number* weight, int64_t outputs, int64_t inputs,
                          unsigned long long* statistics) {
  const int64_t channel = int64_t{blockIdx.x} * kStatisticThreads + threadIdx.x;
  if (channel >= inputs) return;
  unsigned long long sum = 0;
  for (int64_t first = int64_t{blockIdx.y} * kStatisticRows; first < outputs;
       first += int64_t{gridDim.y} * kStatisticRows) {
    const int64_t last = least(outputs, first + kStatisticRows);
    for (int64_t n = first; n < last; ++n) {
      const int64_t share = channel_statistic(widen(weight[n * inputs + channel]));
      sum += static_cast<unsigned long long>(share);
    }
  }
  add_atomically(statistics + channel, sum);
}

// The statistics must be zeros.
template <typename Number>
cudaError_t add_statistics(const Number* weight, int64_t outputs, int64_t inputs,
                           unsigned long long* statistics, cudaStream_t stream) {
  constexpr int64_t kMostRows = 65535;  // of a grid
  const dim3 grid(static_cast<unsigned int>(divide_up(inputs, kStatisticThreads)),
                  static_cast<unsigned int>(least(kMostRows, divide_up(outputs, kStatisticRows))));
  return launch(grid, dim3(kStatisticThreads), 0, stream, add_statistics_kernel<Number>, weight,
                outputs, inputs, statistics);
}

}  // namespace vllm_fork
