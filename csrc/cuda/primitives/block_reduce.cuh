// What all threads of a block find together. The combinations are exact, so that they have no
// order.
#pragma once

#include <cstdint>

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/warp_reduce.cuh"

namespace vllm_fork {

constexpr int kRowThreads = 1024;
constexpr int kRowWarps = kRowThreads / kWarp;
static_assert(kRowWarps == kWarp, "a lane for the result of each warp");

template <typename T>
struct WarpResults {
  T of[kRowWarps];
};

// combine(...) of the values of all kRowThreads threads, in every thread.
template <typename T, typename Combine>
__device__ __forceinline__ T block_reduce(T value, const Combine& combine) {
  WarpResults<T>& results = block_shared<WarpResults<T>>();
  value = warp_reduce(value, combine);
  if (threadIdx.x % kWarp == 0) results.of[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = warp_reduce(results.of[threadIdx.x % kWarp], combine);
  __syncthreads();  // before the results are written anew
  return value;
}

template <typename T>
__device__ __forceinline__ T block_largest(T value) {
  return block_reduce(value, [](T a, T b) { return a > b ? a : b; });
}

__device__ __forceinline__ int64_t block_sum(int64_t value) {
  return block_reduce(value, [](int64_t a, int64_t b) { return a + b; });
}

// The sum of the values of all threads before this one.
template <typename T>
__device__ __forceinline__ T block_sum_before(T value) {
  WarpResults<T>& results = block_shared<WarpResults<T>>();
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto warp = static_cast<int>(threadIdx.x) / kWarp;
  T sum = value;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T before = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned int>(distance));
    if (lane >= distance) sum += before;
  }
  if (lane == kWarp - 1) results.of[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += results.of[w];
  __syncthreads();  // before the results are written anew
  return sum - value;
}

}  // namespace vllm_fork
