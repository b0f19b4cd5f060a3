// How the libraries of emulated kernels call launchers.
#pragma once

#include <string>

#include "cuda/primitives/runtime.h"

namespace vllm_fork {

// Calls the launcher and says what has gone wrong: nothing, most often. The kernels that it launches
// may begin early.
template <typename Launch>
const char* emulated(uint64_t seed, const Launch& launcher) {
  emulation::failure.clear();
  emulation::schedule_seed = seed;
  emulation::num_launches = 0;
  emulation::launches.are_deferred = true;
  const cudaError_t error = launcher();
  emulation::launches.finish();
  emulation::launches.are_deferred = false;
  if (error != cudaSuccess && emulation::failure.empty()) {
    emulation::failure = "The launch failed with error " + std::to_string(error) + ".";
  }
  return emulation::failure.c_str();
}

}  // namespace vllm_fork
