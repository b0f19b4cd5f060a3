// Rotary embeddings and their tables: a thread for a pair.
//
// Specification: docs/numerics/operations.md, "Rotary embedding" and "Rotary tables".
#pragma once

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/numbers.cuh"
#include "cuda/rows/rotation.cuh"

namespace vllm_fork {

constexpr int kRotaryThreads = 128;

__global__ void __launch_bounds__(kRotaryThreads)
    rotary_table_kernel(const float* frequencies, float* table, int64_t positions, int64_t half,
                        double scale) {
  const int64_t i = int64_t{blockIdx.x} * kRotaryThreads + threadIdx.x;
  if (i >= positions * half) return;
  const int64_t position = i / half;
  const int64_t j = i % half;
  const float frequency = frequencies[j];
  const double largest = frequency * static_cast<double>(positions - 1);
  float cosine = float_of(kNanBits);
  float sine = cosine;
  if (frequency >= 0.0f && largest <= kLargestAngle) {
    rotary_entry(position, frequency, scale, &cosine, &sine);
  }
  table[position * 2 * half + j] = cosine;
  table[position * 2 * half + half + j] = sine;
}

// Block (x, y) handles row x, and y counts pieces of its pairs.
template <typename Number>
__global__ void __launch_bounds__(kRotaryThreads) rotate_kernel(RotationTask task) {
  wait_for_earlier_kernels();
  const int64_t pair = int64_t{blockIdx.y} * kRotaryThreads + threadIdx.x;
  if (pair >= task.heads * task.half) return;
  rotate_in_place<Number>(task, blockIdx.x, pair / task.half, pair % task.half);
}

cudaError_t launch_portable_rotary_table(const float* frequencies, float* table,
                                         int64_t positions, int64_t half, double scale,
                                         cudaStream_t stream) {
  if (half == 0) return cudaSuccess;
  const int64_t blocks = (positions * half + kRotaryThreads - 1) / kRotaryThreads;
  return launch(static_cast<unsigned int>(blocks), kRotaryThreads, 0, stream, rotary_table_kernel,
                frequencies, table, positions, half, scale);
}

cudaError_t launch_portable_rotate(const RotationTask& task, cudaStream_t stream) {
  const int64_t pairs = task.heads * task.half;
  if (task.rows == 0 || pairs == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned int>(task.rows),
                  static_cast<unsigned int>((pairs + kRotaryThreads - 1) / kRotaryThreads));
  return with_number(task.format, [&](auto number) {
    return launch_dependent(grid, kRotaryThreads, 0, stream, rotate_kernel<decltype(number)>,
                            task);
  });
}

}  // namespace vllm_fork
