#include "cuda/primitives/launch.h"

#include <cstdlib>
#include <optional>
#include <utility>

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/known_facts.h"

namespace vllm_fork {

// The threads with which the kernel below can be launched, which the host can ask for: so it learns
// what the code that a GPU has got was compiled for, be it machine code, or made from PTX.
inline constexpr int kThreadsIfCodeWaits = 64;
inline constexpr int kThreadsOtherwise = 32;

__global__ void __launch_bounds__(kCodeWaits ? kThreadsIfCodeWaits : kThreadsOtherwise)
    asked_for_its_threads_kernel() {}

namespace {

using Reason = std::optional<std::string>;

Reason ask_for_reason(int gpu) {
  int major = 0;
  int minor = 0;
  cudaFuncAttributes code{};
  const cudaError_t errors[] = {
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu),
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu),
      cudaFuncGetAttributes(&code, asked_for_its_threads_kernel),
  };
  for (const cudaError_t error : errors) {
    if (error == cudaSuccess) continue;
    cudaGetLastError();  // no later launch is to blame
    return std::nullopt;
  }
  return reason_to_begin_in_turn(std::getenv(kDependentLaunchVariable), 10 * major + minor,
                                 code.maxThreadsPerBlock >= kThreadsIfCodeWaits);
}

// What use(reason) returns of the current GPU's, which is empty if it cannot be found out.
template <typename Use>
auto with_reason(const Use& use) {
  static KnownFacts<int, Reason> reasons;
  int gpu = 0;
  if (cudaGetDevice(&gpu) != cudaSuccess) return use(Reason());
  return reasons.with(gpu, [&](Reason& reason) {
    if (!reason) reason = ask_for_reason(gpu);
    return use(reason);
  });
}

}  // namespace

std::string reason_to_begin_in_turn() {
  return with_reason([](const Reason& reason) {
    return reason.value_or("the CUDA runtime does not say what the GPU can do");
  });
}

bool may_begin_early() {
  return with_reason([](const Reason& reason) { return reason && reason->empty(); });
}

cudaError_t allow_shared_bytes(const void* kernel, size_t bytes) {
  constexpr size_t kWithoutAsking = 48 * 1024;
  static KnownFacts<std::pair<int, const void*>, size_t> allowed_bytes;
  if (bytes <= kWithoutAsking) return cudaSuccess;
  int gpu = 0;
  const cudaError_t error = cudaGetDevice(&gpu);
  if (error != cudaSuccess) return error;
  return allowed_bytes.with({gpu, kernel}, [&](size_t& allowed) {
    if (bytes <= allowed) return cudaSuccess;
    const cudaError_t refused = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (refused == cudaSuccess) allowed = bytes;
    return refused;
  });
}

}  // namespace vllm_fork
