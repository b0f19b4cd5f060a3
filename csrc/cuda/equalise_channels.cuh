// What the magnitudes of input channels are, and the exponents that make them equal.
#pragma once

#include "../portable/equalisation.h"
#include "../portable/number_types.h"
#include "../portable/product_layout.h"
#include "device.cuh"
#include "tickets.cuh"

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
      sum += static_cast<unsigned long long>(channel_statistic(widen(weight[n * inputs + channel])));
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

inline constexpr int kMedianThreads = 1024;

__device__ __forceinline__ int32_t sum_of_warp(int32_t number) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    number += __shfl_xor_sync(kAllLanes, number, distance);
  }
  return number;
}

// How many of the statistics are in first .. last, for all threads of the block.
__device__ __forceinline__ int32_t count_between(const int64_t* statistics, int64_t inputs,
                                                 int64_t first, int64_t last) {
  int32_t(&of_warps)[kMedianThreads / kWarp] = block_shared<int32_t[kMedianThreads / kWarp]>();
  int32_t count = 0;
  for (int64_t k = threadIdx.x; k < inputs; k += kMedianThreads) {
    count += first <= statistics[k] && statistics[k] <= last;
  }
  count = sum_of_warp(count);
  __syncthreads();  // all have read what was there before
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = count;
  __syncthreads();
  return sum_of_warp(of_warps[threadIdx.x % kWarp]);
}

// One block of threads. The median of the statistics above 0 is found from its highest bit down; it
// is 0 if there are none. `negative` becomes whether a statistic is below 0.
__global__ void __launch_bounds__(kMedianThreads)
    equalise_channels_kernel(const int64_t* statistics, int64_t inputs, int8_t* exponents,
                             int32_t* negative) {
  constexpr int64_t kMost = int64_t{1} << 62;
  const int32_t present = count_between(statistics, inputs, 1, kMost - 1 + kMost);
  const int32_t rank = (present - 1) / 2;
  int64_t median = 0;
  for (int64_t bit = kMost; bit > 0 && present > 0; bit /= 2) {
    if (count_between(statistics, inputs, 1, median + (bit - 1)) <= rank) median += bit;
  }
  for (int64_t k = threadIdx.x; k < inputs; k += kMedianThreads) {
    exponents[k] = exponent_to_median(static_cast<uint64_t>(statistics[k]),
                                      static_cast<uint64_t>(median));
    if (statistics[k] < 0) *negative = 1;
  }
}

inline cudaError_t equalise_channels(const int64_t* statistics, int64_t inputs, int8_t* exponents,
                                     int32_t* negative, cudaStream_t stream) {
  return launch(dim3(1), dim3(kMedianThreads), 0, stream, equalise_channels_kernel, statistics,
                inputs, exponents, negative);
}

}  // namespace vllm_fork
