// The CUDA implementation of dependent_launches: the torch side of cuda/primitives/launch.cu.
#include <torch/csrc/stable/library.h>

#include <string>

#include "bindings/cuda_device.h"
#include "cuda/primitives/launch.h"

namespace vllm_fork {
namespace {

std::string dependent_launches(Tensor like) {
  const DeviceGuard guard(like.get_device_index());
  const std::string reason = reason_to_begin_in_turn();
  return reason.empty() ? "on" : "off: " + reason;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CUDA, library) {
  library.impl("dependent_launches", TORCH_BOX(&vllm_fork::dependent_launches));
}
