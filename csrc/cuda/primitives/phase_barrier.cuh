// Barriers in shared memory that threads arrive at and others wait for: mbarrier (PTX ISA, sm_80).
//
// A barrier has phases, 0, 1, 0 and so on. A phase is over when as many threads have arrived as the
// barrier counts; the next one begins at once. Who waits for a phase goes on as soon as it is over,
// and sees what those that arrived had written to shared memory before.
#pragma once

#include <cstdint>

#include "cuda/primitives/device.cuh"

#if defined(VLLM_FORK_EMULATE_CUDA)
#include "emulation/phase_barriers_on_host.h"
#else

namespace vllm_fork {

struct alignas(8) PhaseBarrier {
  uint64_t state;

  // One thread calls this, and all others later than that.
  __device__ __forceinline__ void begin(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)
                 : "memory");
  }

  __device__ __forceinline__ void arrive() {
    asm volatile(
        "{\n"
        ".reg .b64 token;\n"
        "mbarrier.arrive.shared::cta.b64 token, [%0];\n"
        "}" ::"r"(address())
        : "memory");
  }

  // Until the phase of this parity is over. It may be that already, the phase after it may not.
  __device__ __forceinline__ void wait(int parity) {
    int is_over = 0;
    do {
      asm volatile(
          "{\n"
          ".reg .pred over;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
          "selp.s32 %0, 1, 0, over;\n"
          "}"
          : "=r"(is_over)
          : "r"(address()), "r"(parity)
          : "memory");
    } while (is_over == 0);
  }

 private:
  __device__ __forceinline__ unsigned int address() const {
    return static_cast<unsigned int>(__cvta_generic_to_shared(this));
  }
};

}  // namespace vllm_fork

#endif
