// Barriers in shared memory that threads arrive at and others wait for: mbarrier (PTX ISA, sm_80).
//
// A barrier has phases, 0, 1, 0 and so on. A phase is over when as many threads have arrived as the
// barrier counts, and the bytes that they expect are there (bulk_copy.cuh); the next one begins at
// once. Who waits for a phase goes on as soon as it is over, and sees what those that arrived had
// written to shared memory before.
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

  // And says that so many bytes more are to be copied in this phase: sm_90.
  __device__ __forceinline__ void arrive_expecting(int bytes) {
    asm volatile(
        "{\n"
        ".reg .b64 token;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 token, [%0], %1;\n"
        "}" ::"r"(address()),
        "r"(bytes)
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

  __device__ __forceinline__ unsigned int address() const {
    return static_cast<unsigned int>(__cvta_generic_to_shared(this));
  }
};

}  // namespace vllm_fork

#endif

namespace vllm_fork {

// Which stage is next of some that are taken one after the other, again and again, and the parity
// of the phase in which it is filled.
template <int kStages>
struct StageCursor {
  int stage = 0;
  int parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace vllm_fork
