// The kernels on rows, on the CPU: built as a library by emulated_ops.py.
#include "cuda/rows/functions.cuh"
#include "cuda/rows/norm.cuh"
#include "cuda/rows/rotary.cuh"
#include "../emulated_launch.h"

using namespace vllm_fork;

extern "C" const char* run_map(uint64_t seed, const void* x, void* result, int format,
                               int64_t count, int64_t function) {
  return emulated(seed, [=] {
    return launch_portable_map(x, result, static_cast<Format>(format), count,
                               static_cast<Function>(function), nullptr);
  });
}

extern "C" const char* run_gated(uint64_t seed, const void* x, void* result, int format,
                                 int64_t rows, int64_t half, int64_t function) {
  return emulated(seed, [=] {
    return launch_portable_gated(x, result, static_cast<Format>(format), rows, half,
                                 static_cast<Function>(function), nullptr);
  });
}

extern "C" const char* run_norm(uint64_t seed, const NormTask* task) {
  return emulated(seed, [=] { return launch_portable_norm(*task, nullptr); });
}

extern "C" const char* run_rotary_table(uint64_t seed, const float* frequencies, float* table,
                                        int64_t positions, int64_t half, double scale) {
  return emulated(seed, [=] {
    return launch_portable_rotary_table(frequencies, table, positions, half, scale, nullptr);
  });
}

extern "C" const char* run_rotate(uint64_t seed, const RotationTask* task) {
  return emulated(seed, [=] { return launch_portable_rotate(*task, nullptr); });
}
