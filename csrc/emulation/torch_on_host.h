// What the bindings of CUDA ops use of torch's CUDA side, for the emulation: the ops take tensors
// that are on the CPU, and are registered for it, in a library of their own (tests/emulated_gpu).
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulation/cuda_on_host.h"

namespace vllm_fork {

class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t) {}
};

inline cudaStream_t current_stream(const torch::stable::Tensor&) { return nullptr; }

namespace emulation {

// What deferred launches need, and the ops have let go of.
inline std::vector<torch::stable::Tensor> kept;

inline void check_launch(cudaError_t error) {
  const std::string sentence = std::move(failure);
  failure.clear();
  if (!sentence.empty()) throw std::runtime_error(sentence);
  if (error != cudaSuccess) {
    throw std::runtime_error("A launch failed with error " + std::to_string(error) + ".");
  }
}

}  // namespace emulation

inline torch::stable::Tensor new_workspace(const torch::stable::Tensor& like, int64_t count,
                                           torch::headeronly::ScalarType type) {
  torch::stable::Tensor memory = torch::stable::new_empty(like, {count}, type);
  if (emulation::launches.are_deferred) emulation::kept.push_back(memory);
  return memory;
}

}  // namespace vllm_fork

#undef STD_CUDA_CHECK
#define STD_CUDA_CHECK(call) ::vllm_fork::emulation::check_launch(call)

// GPUs with few multiprocessors, so that small products are of several kinds of parts, too. The number
// of one is its compute capability.
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
};

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int gpu) {
  constexpr int kMultiprocessors = 8;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = gpu;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    default:
      *value = vllm_fork::emulation::kMostSharedBytes;
  }
  return cudaSuccess;
}

namespace vllm_fork {

// 8, or what VLLM_FORK_EMULATED_CAPABILITY says.
inline int gpu_of(const torch::stable::Tensor&) {
  const char* capability = std::getenv("VLLM_FORK_EMULATED_CAPABILITY");
  return capability == nullptr ? 8 : std::atoi(capability);
}

}  // namespace vllm_fork

// STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CUDA, ...) then registers for the CPU. The headers above,
// which use the word, are all behind us.
#define CUDA CPU
