// Which tensor cores the CUDA implementations of ops multiply with.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "bindings/cuda_device.h"
#include "cuda/primitives/tensor_cores.h"
#include "cuda/product/product.h"

namespace vllm_fork {

// Read by the first op, once in a process.
inline const std::string& asked_tensor_cores() {
  const char* value = std::getenv(kTensorCoresVariable);
  static const std::string asked = value == nullptr ? "" : value;
  return asked;
}

// Of the tensor's GPU, which is the current one: asked once for each.
inline TensorCores tensor_cores_of(const Tensor& tensor) {
  static KnownFacts<int, std::optional<TensorCores>> chosen;
  return chosen.with(gpu_of(tensor), [&tensor](std::optional<TensorCores>& cores) {
    if (cores) return *cores;
    const int64_t major = facts_of(tensor).major;
    const bool has_warpgroups = major == kHopper && has_warpgroup_products();
    cores = choose_tensor_cores(major, has_warpgroups, asked_tensor_cores());
    return *cores;
  });
}

}  // namespace vllm_fork
