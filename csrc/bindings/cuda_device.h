// The device and stream that the CUDA implementations of ops work on.
#pragma once

#if defined(VLLM_FORK_EMULATE_CUDA)
#include "emulation/torch_on_host.h"
#else
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>
#endif
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <optional>

#include "bindings/argument_checks.h"
#include "cuda/primitives/known_facts.h"

namespace vllm_fork {

#if !defined(VLLM_FORK_EMULATE_CUDA)

using torch::stable::accelerator::DeviceGuard;

// The stream that torch's own kernels on this tensor's device would use now.
inline cudaStream_t current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

// The number of the tensor's GPU.
inline int gpu_of(const Tensor& tensor) { return tensor.get_device_index(); }

// Memory for the kernels that an op launches. It may let go of it then: torch gives it to nothing
// but what comes later in the stream.
inline Tensor new_workspace(const Tensor& like, int64_t count,
                            torch::headeronly::ScalarType type) {
  return torch::stable::new_empty(like, {count}, type);
}

#endif

// What ops have to know of a GPU.
struct GpuFacts {
  int64_t major;  // of its compute capability
  int64_t multiprocessors;
  int64_t shared_bytes;  // of a multiprocessor
};

// Of the tensor's GPU: the runtime is asked once for each.
inline GpuFacts facts_of(const Tensor& tensor) {
  static KnownFacts<int, std::optional<GpuFacts>> facts;
  const int gpu = gpu_of(tensor);
  return facts.with(gpu, [gpu](std::optional<GpuFacts>& known) {
    const auto ask = [gpu](cudaDeviceAttr name) {
      int value = 0;
      STD_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, gpu));
      return int64_t{value};
    };
    if (!known) {
      known = GpuFacts{ask(cudaDevAttrComputeCapabilityMajor),
                       ask(cudaDevAttrMultiProcessorCount),
                       ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor)};
    }
    return *known;
  });
}

// An argument beside the one whose device is taken.
struct NamedTensor {
  const char* name;
  std::optional<Tensor> tensor;
};

inline void check_devices(const char* op, const char* reference_name, const Tensor& reference,
                          std::initializer_list<NamedTensor> others) {
  for (const NamedTensor& other : others) {
    check(!other.tensor || other.tensor->device() == reference.device(), op, ": ", other.name,
          " must be on the device of ", reference_name, ".");
  }
}

}  // namespace vllm_fork
