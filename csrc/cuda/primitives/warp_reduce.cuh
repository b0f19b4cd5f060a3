// What the lanes of a warp find together.
#pragma once

#include "cuda/primitives/device.cuh"

namespace vllm_fork {

// combine(...) of the values of all lanes, in every lane. It has to be exact, so that the order of
// the combinations is of no account.
template <typename T, typename Combine>
__device__ __forceinline__ T warp_reduce(T value, const Combine& combine) {
#pragma unroll
  for (int bits = kWarp / 2; bits >= 1; bits /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, bits));
  }
  return value;
}

template <typename T>
__device__ __forceinline__ T warp_largest(T value) {
  return warp_reduce(value, [](T a, T b) { return a > b ? a : b; });
}

}  // namespace vllm_fork
