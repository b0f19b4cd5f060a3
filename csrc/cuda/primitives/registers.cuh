// Words to the compiler about registers.
#pragma once

#include "cuda/primitives/device.cuh"

namespace vllm_fork {

// For the compiler, the variable changes here. So what was computed from it before is not kept, and
// no use of it moves past this point.
template <typename Word>
__device__ __forceinline__ void hold([[maybe_unused]] Word& word) {
#if !defined(VLLM_FORK_EMULATE_CUDA)
  asm volatile("" : "+r"(word)::"memory");
#endif
}

}  // namespace vllm_fork
