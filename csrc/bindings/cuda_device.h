// The device and stream that the CUDA implementations of ops work on.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <optional>

#include "argument_checks.h"

namespace vllm_fork {

using torch::stable::accelerator::DeviceGuard;

// The stream that torch's own kernels on this tensor's device would use now.
inline cudaStream_t current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
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
