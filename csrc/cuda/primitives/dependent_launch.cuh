// Kernels that begin while the one before them in the stream still runs, and wait for it by
// themselves: programmatic dependent launch, from sm_90 on (CUDA Programming Guide, "Programmatic
// Dependent Launch and Synchronization"; PTX ISA, "griddepcontrol"). The launch, and what a kernel
// does that needs no other one's results, then take no time of their own.
//
// Let K be launched by launch_dependent, and P be what is before it in the stream. All threads of K
// call wait_for_earlier_kernels; tests see to that. Why that is safe:
//
// 1. K begins when P has ended; or, if P is such a kernel itself, when all blocks of threads of P
//    have come back from wait_for_earlier_kernels. Then all that is before P has ended, and what it
//    wrote can be seen. So K runs beside nothing but P, however many such kernels there are. Where P
//    is a library's, and lets others begin before it has waited, K runs beside what P waits for, too.
// 2. Behind its wait, K is where it would be after an ordinary launch: P has ended as well, and so
//    what P has waited for. (Of a library's kernel that begins early, this asks that it waits.)
//    Results, workspaces, counters and tickets, written and read there alone, need no further care.
// 3. K ends after its wait, so after P. Whatever comes next, is launched in an ordinary way, or
//    waits for the stream or an event, finds all of them ended.
// 4. Before its wait, K may read what P does not write, and write shared memory. Of these reads
//    there are arguments and packed weights. No kernel that calls wait_for_earlier_kernels writes a
//    weight. Those that do, and copies, say nothing to what follows, which then begins when their
//    blocks of threads have ended. That all of their writes can be seen by then, nobody promises;
//    but between them and a product is the kernel that makes its rows' digits, and has waited. So
//    no weight may change between that kernel and the product: weights change between steps.
//
// Recorded in a CUDA graph, such launches become edges that say the same (from CUDA 12.3 on).
#pragma once

#include "cuda/primitives/device.cuh"

#if defined(VLLM_FORK_EMULATE_CUDA)
#include "emulation/dependent_launch_on_host.h"
#else

namespace vllm_fork {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kCodeWaits = true;
#else
inline constexpr bool kCodeWaits = false;  // nothing begins before its turn
#endif

// Waits until the kernels before have ended, and what they wrote can be seen. Lets the kernel
// behind begin when all blocks of threads are here, so with whatever room these leave.
__device__ __forceinline__ void wait_for_earlier_kernels() {
  if constexpr (kCodeWaits) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
}

// Launches a kernel whose threads all call wait_for_earlier_kernels.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                             void (*kernel)(Parameters...), Arguments... arguments) {
  const cudaError_t error =
      allow_shared_bytes(reinterpret_cast<const void*>(kernel), shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute begins_early{};
  begins_early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  begins_early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &begins_early;
  config.numAttrs = may_begin_early() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  return cudaGetLastError();
}

}  // namespace vllm_fork

#endif
