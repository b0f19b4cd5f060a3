// Copies from global to shared memory that a thread starts, and waits for later.
#pragma once

#include "cuda/primitives/device.cuh"

#if defined(VLLM_FORK_EMULATE_CUDA)
#include "emulation/copies_on_host.h"
#else

namespace vllm_fork {

// Starts to copy 16 bytes, without a detour through registers or the first cache; zeros if what is
// to be copied is not there. The address must be one that could be read.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool is_there) {
  const auto address = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
  const int bytes = is_there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
}

// Starts to copy 4 bytes.
__device__ __forceinline__ void copy_word_async(void* shared, const void* global) {
  const auto address = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(global) : "memory");
}

// Makes a group of the copies that the thread has started since the last call.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all of the thread's groups are there but the latest kPending.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace vllm_fork

#endif
