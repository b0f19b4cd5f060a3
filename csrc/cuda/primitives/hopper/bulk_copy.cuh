// Copies of many bytes from global to shared memory that one thread starts, and a barrier counts:
// cp.async.bulk (PTX ISA, sm_90).
#pragma once

#include "cuda/primitives/hopper/phase_barrier.cuh"

#if defined(VLLM_FORK_EMULATE_CUDA)
#include "emulation/bulk_copies_on_host.h"
#else

namespace vllm_fork {

// Starts to copy; both addresses and the count are multiples of 16 bytes. The phase of the barrier
// is over when the bytes are there that threads have said are expected, and who waits sees them.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, int bytes,
                                          PhaseBarrier& barrier) {
  const auto to = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(to),
      "l"(global), "r"(bytes), "r"(barrier.address())
      : "memory");
}

// Starts to bring memory to the second cache, from where it is copied later. Nothing waits for it,
// and nothing but time depends on it.
__device__ __forceinline__ void prefetch_bulk(const void* global, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

}  // namespace vllm_fork

#endif
