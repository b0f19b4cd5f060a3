// RMSNorm and LayerNorm: a block for a row, a thread for each lane of its sums.
//
// Specification: docs/numerics/operations.md, "Norms".
#pragma once

#include "../portable/lane_sum.h"
#include "numbers.cuh"
#include "portable_norm.h"

namespace vllm_fork {

struct Lanes {
  float sums[kSumLanes];
};

// The sum of all lanes, of which each thread has one, in every thread.
__device__ __forceinline__ float fold_lanes_of_block(float sum) {
  Lanes& lanes = block_shared<Lanes>();
  const auto lane = static_cast<int>(threadIdx.x);
  lanes.sums[lane] = sum;
  __syncthreads();
  for (int half = kSumLanes / 2; half >= kWarp; half /= 2) {
    if (lane < half) lanes.sums[lane] += lanes.sums[lane + half];
    __syncthreads();
  }
  float folded = lanes.sums[lane % kWarp];
  for (int half = kWarp / 2; half >= 1; half /= 2) {
    folded += __shfl_down_sync(kAllLanes, folded, static_cast<unsigned int>(half));
  }
  __syncthreads();  // before the lanes are written anew
  return __shfl_sync(kAllLanes, folded, 0);
}

// The residual becomes its sum with x. Each thread sees the elements of its lane alone, so that it
// may read what it has written.
template <typename Number>
__device__ __forceinline__ void add_residual(const Number* x, Number* residual, int64_t size) {
  for (int64_t k = threadIdx.x; k < size; k += kSumLanes) {
    residual[k] = narrow<Number>(widen(x[k]) + widen(residual[k]));
  }
}

template <typename Number>
struct NormRow {
  const NormTask& task;
  const Number* row;
  Number* result;

  template <typename Add>
  __device__ float sum(const Add& add) const {
    float lane = 0.0f;
    for (int64_t k = threadIdx.x; k < task.size; k += kSumLanes) lane = add(widen(row[k]), lane);
    return fold_lanes_of_block(lane);
  }

  __device__ void normalise() const {
    const auto count = static_cast<float>(task.size);
    float mean = 0.0f;
    if (task.is_centred) mean = sum([](float x, float s) { return s + x; }) / count;
    const bool is_centred = task.is_centred;
    const float squares = sum([mean, is_centred](float x, float s) {
      const float d = is_centred ? x - mean : x;
      return fused(d, d, s);
    });
    const float factor = 1.0f / square_root(squares / count + task.epsilon);
    for (int64_t k = threadIdx.x; k < task.size; k += kSumLanes) {
      const float x = widen(row[k]);
      result[k] = narrow<Number>(scaled((is_centred ? x - mean : x) * factor, k));
    }
  }

  __device__ float scaled(float x, int64_t k) const {
    if (task.weight.start == nullptr) return x;
    const float weight =
        read_number(task.weight.start, task.weight.format, k) + task.weight_offset;
    if (task.bias.start == nullptr) return x * weight;
    return fused(x, weight, read_number(task.bias.start, task.bias.format, k));
  }
};

template <typename Number>
__global__ void __launch_bounds__(kSumLanes) norm_kernel(NormTask task) {
  const int64_t start = int64_t{blockIdx.x} * task.size;
  const Number* x = static_cast<const Number*>(task.x) + start;
  Number* result = static_cast<Number*>(task.result) + start;
  if (task.residual != nullptr) {
    Number* residual = static_cast<Number*>(task.residual) + start;
    add_residual(x, residual, task.size);
    x = residual;
  }
  NormRow<Number>{task, x, result}.normalise();
}

cudaError_t launch_portable_norm(const NormTask& task, cudaStream_t stream) {
  if (task.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned int>(task.rows));
  return with_number(task.format, [&](auto number) {
    return launch(grid, kSumLanes, 0, stream, norm_kernel<decltype(number)>, task);
  });
}

}  // namespace vllm_fork
