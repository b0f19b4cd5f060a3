// What Hopper's warpgroups have for all kernels: four warps that multiply together, by wgmma, and
// registers that pass from one warpgroup to another.
//
// A product runs beside the threads that asked for it: they may neither look at its sums nor change
// what it multiplies before they have waited.
#pragma once

#include <cstdint>

#include "cuda/primitives/device.cuh"

namespace vllm_fork {

inline constexpr int kWarpgroup = 4 * kWarp;
inline constexpr int kMatrixRows = 8;                          // of a matrix that wgmma reads
inline constexpr int kMatrixBytes = 16;                        // of each row
inline constexpr int kMatrix = kMatrixRows * kMatrixBytes;     // all of it, one row after the other

// Says where matrices of 8 rows of 16 bytes lie in shared memory: those of a step's second half
// `half_bytes` behind those of the first, those of the next 8 rows `tile_bytes` behind. All of these
// are multiples of 16 (PTX ISA, "Matrix descriptor", without swizzling), the address is counted in
// such.
__device__ __forceinline__ uint64_t matrices(unsigned int sixteens, int half_bytes,
                                             int tile_bytes) {
  const auto in_sixteens = [](int bytes) { return static_cast<unsigned int>(bytes >> 4); };
  const unsigned int low = sixteens + (in_sixteens(half_bytes) << 16);
  return low | static_cast<uint64_t>(in_sixteens(tile_bytes)) << 32;
}

}  // namespace vllm_fork

#if defined(VLLM_FORK_EMULATE_CUDA)
#include "emulation/warpgroups_on_host.h"
#else

namespace vllm_fork {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasWarpgroups = true;
#else
inline constexpr bool kHasWarpgroups = false;  // no kernel may call what follows
#endif

// What a kernel for another GPU comes to, if anything could launch it.
__device__ __forceinline__ void stop_kernel() { __trap(); }

// Where something lies in shared memory, in 16 bytes.
__device__ __forceinline__ unsigned int sixteens_of(const void* shared) {
  return static_cast<unsigned int>(__cvta_generic_to_shared(shared)) >> 4;
}

// Makes what the thread has written to shared memory visible to products and bulk copies.
__device__ __forceinline__ void show_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Before the first product, and wherever registers that take part have changed.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Makes a group of the products that were asked for since the last call.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until all groups are done but the latest kPending.
template <int kPending = 0>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A warpgroup's threads have so many registers from here on: fewer, or more, which waits until others
// have given theirs back.
template <int kCount>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount) : "memory");
}

}  // namespace vllm_fork

#endif
