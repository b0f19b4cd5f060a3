// Blocks of threads, or warps, that wait for none but know which of them is the last.
#pragma once

#include "cuda/primitives/device.cuh"

namespace vllm_fork {

#if defined(VLLM_FORK_EMULATE_CUDA)

inline void memory_fence() {}

template <typename Integer>
Integer add_atomically(Integer* number, Integer addend) {
  const Integer before = *number;
  *number += addend;
  return before;
}

template <typename Integer>
void lower_atomically(Integer* number, Integer bound) {
  *number = std::min(*number, bound);
}

#else

__device__ __forceinline__ void memory_fence() { __threadfence(); }

// Returns what was there before.
template <typename Integer>
__device__ __forceinline__ Integer add_atomically(Integer* number, Integer addend) {
  return atomicAdd(number, addend);
}

template <typename Integer>
__device__ __forceinline__ void lower_atomically(Integer* number, Integer bound) {
  atomicMin(number, bound);
}

#endif

// Whether the calling block of threads is the last of `count` that call this with the counter,
// which was 0 and becomes so again. If so, it sees all that they wrote before.
__device__ __forceinline__ bool is_last_of(int count, int32_t* counter) {
  bool& is_last = block_shared<bool>();
  __syncthreads();
  if (threadIdx.x == 0) {
    memory_fence();  // what the block wrote is before its mark
    is_last = add_atomically(counter, int32_t{1}) == count - 1;
    if (is_last) *counter = 0;
    memory_fence();  // what the others wrote is before what follows
  }
  __syncthreads();
  return is_last;
}

// The same of a warp, all lanes together.
__device__ __forceinline__ bool is_last_warp_of(int count, int32_t* counter) {
  int is_last = 0;
  __syncwarp();
  if (threadIdx.x % kWarp == 0) {
    memory_fence();
    is_last = add_atomically(counter, int32_t{1}) == count - 1;
    if (is_last != 0) *counter = 0;
    memory_fence();
  }
  __syncwarp();
  return __shfl_sync(kAllLanes, is_last, 0) != 0;
}

}  // namespace vllm_fork
