// Which tensor cores the CUDA implementations of ops multiply with.
#pragma once

#include <cstdlib>
#include <string>

#include "cuda/primitives/tensor_cores.h"
#include "cuda/product/product.h"

namespace vllm_fork {

// Read by the first op, once in a process.
inline const std::string& asked_tensor_cores() {
  const char* value = std::getenv(kTensorCoresVariable);
  static const std::string asked = value == nullptr ? "" : value;
  return asked;
}

// Of the current GPU. Asked once: all of one generation have the same code.
inline bool has_warpgroups(int64_t major) {
  if (major != kHopper) return false;
  static const bool has = has_warpgroup_products();
  return has;
}

// Of the current GPU, whose compute capability is given.
inline TensorCores tensor_cores_of(int64_t major) {
  return choose_tensor_cores(major, has_warpgroups(major), asked_tensor_cores());
}

}  // namespace vllm_fork
