// What the kernels use where nvcc and the emulation on a CPU differ in notation.
#pragma once

#include <cstddef>

#include "cuda/primitives/launch.h"
#include "cuda/primitives/runtime.h"

namespace vllm_fork {

constexpr int kWarp = 32;
constexpr unsigned int kAllLanes = 0xffffffffu;

#if defined(__CUDACC__)

// A variable that the threads of a block share. T needs no constructor; each T is one variable.
template <typename T>
__device__ __forceinline__ T& block_shared() {
  __shared__ T variable;
  return variable;
}

// The memory whose size the launch gives.
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char memory[];
  return reinterpret_cast<T*>(memory);
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   void (*kernel)(Parameters...), Arguments... arguments) {
  const cudaError_t error =
      allow_shared_bytes(reinterpret_cast<const void*>(kernel), shared_bytes);
  if (error != cudaSuccess) return error;
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  return cudaGetLastError();
}

#endif

}  // namespace vllm_fork
