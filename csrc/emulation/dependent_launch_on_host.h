// cuda/primitives/dependent_launch.cuh for the emulation: see launches.h.
#pragma once

#include "emulation/cuda_on_host.h"

namespace vllm_fork {

inline void wait_for_earlier_kernels(const Place& place = Place::current()) {
  emulation::Block::current_block->wait_for_kernels(place);
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t,
                             void (*kernel)(Parameters...), Arguments... arguments) {
  const auto call = [=] { kernel(static_cast<Parameters>(arguments)...); };
  return emulation::add_launch(grid, block, shared_bytes, call, true);
}

}  // namespace vllm_fork
