// What the host does before it launches a kernel on the current GPU. What it has to ask of the CUDA
// runtime it asks once for each GPU.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/primitives/runtime.h"

namespace vllm_fork {

inline constexpr const char* kDependentLaunchVariable = "VLLM_FORK_CUDA_DEPENDENT_LAUNCH";

// Why kernels may not begin while the one before still runs (dependent_launch.cuh); empty if they
// may. `asked` is the value of the variable, or null; only 1 is as if there were none. `capability`
// is the GPU's, 10 * major + minor; `waits`: whether the code that it has got of this library waits.
inline std::string reason_to_begin_in_turn(const char* asked, int capability, bool waits) {
  constexpr int kHopper = 90;
  const std::string value = asked == nullptr ? "" : asked;
  if (!value.empty() && value != "1") return std::string(kDependentLaunchVariable) + "=" + value;
  if (capability < kHopper) {
    return "the GPU has compute capability " + std::to_string(capability / 10) + "." +
           std::to_string(capability % 10) + ", and it needs 9.0";
  }
  if (waits) return "";
  return "what the GPU runs of the library was compiled for compute capability 8.x";
}

#if defined(VLLM_FORK_EMULATE_CUDA)

inline std::string reason_to_begin_in_turn() { return ""; }

#else

// The same of the current GPU.
std::string reason_to_begin_in_turn();

// Whether there is none. Not where it cannot be found out: the launch will say why.
bool may_begin_early();

// Lets a kernel be launched with so much dynamic shared memory: every GPU from sm_80 on has 99 KiB,
// a Hopper 227.
cudaError_t allow_shared_bytes(const void* kernel, size_t bytes);

#endif

}  // namespace vllm_fork
