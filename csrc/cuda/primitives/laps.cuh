// Where a kernel's time goes: the cycles of its phases, which benchmarks/gpu/clocks prints.
// Without VLLM_FORK_CLOCKS there is nothing of it in the code.
#pragma once

#include "cuda/primitives/device.cuh"

namespace vllm_fork {

#if defined(VLLM_FORK_CLOCKS)

inline constexpr int kMostPhases = 8;
inline constexpr int kMostGroups = 2;  // of threads that do different things

// Of the first block of threads; behind the phases, how often the first of them has ended.
static __device__ unsigned int told_laps[kMostGroups][kMostPhases + 1];

class Laps {
 public:
  __device__ __forceinline__ void begin() { before_ = now(); }

  // What has passed since the last call is the phase's.
  __device__ __forceinline__ void end(int phase) {
    const unsigned int at = now();
    cycles_[phase] += at - before_;
    cycles_[kMostPhases] += phase == 0 ? 1 : 0;
    before_ = at;
  }

  __device__ __forceinline__ void tell(int group) const {
    if (blockIdx.x != 0 || blockIdx.y != 0 || blockIdx.z != 0) return;
    for (int i = 0; i <= kMostPhases; ++i) told_laps[group][i] = cycles_[i];
  }

 private:
  static __device__ __forceinline__ unsigned int now() {
    unsigned int cycles;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
    return cycles;
  }

  unsigned int cycles_[kMostPhases + 1] = {};
  unsigned int before_ = 0;
};

#else

class Laps {
 public:
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void end(int) {}
  __device__ __forceinline__ void tell(int) const {}
};

#endif

}  // namespace vllm_fork
