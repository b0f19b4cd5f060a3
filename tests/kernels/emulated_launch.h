// How the libraries of emulated kernels call launchers.
#pragma once

#include <string>

#include "cuda/primitives/runtime.h"

namespace vllm_fork {

// Calls the launcher and says what has gone wrong: nothing, most often.
template <typename Launch>
const char* emulated(uint64_t seed, const Launch& launcher) {
  emulation::failure.clear();
  emulation::schedule_seed = seed;
  emulation::num_launches = 0;
  const cudaError_t error = launcher();
  if (error != cudaSuccess && emulation::failure.empty()) {
    emulation::failure = "The launch failed with error " + std::to_string(error) + ".";
  }
  return emulation::failure.c_str();
}

}  // namespace vllm_fork
