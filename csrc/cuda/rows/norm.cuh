// RMSNorm and LayerNorm: a block of threads for a row, with a thread for each lane of its sums; or a
// warp, where no lane has more than one element, as in norms of heads.
//
// Specification: docs/numerics/operations.md, "Sums" and "Norms".
#pragma once

#include <type_traits>

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/numbers.cuh"
#include "cuda/product/quantise_rows.cuh"
#include "cuda/rows/norm.h"
#include "portable/lane_sum.h"

namespace vllm_fork {

struct LaneSums {
  float of[kSumLanes];
};

// The lanes of a sum that one of `kThreads` threads has: `thread`, thread + kThreads and so on.
template <int kThreads>
struct OwnLanes {
  float sums[kSumLanes / kThreads] = {};

  // The sum of all lanes of all threads, in every thread.
  __device__ __forceinline__ float fold() {
    float sum = kThreads == kWarp ? fold_own() : fold_in_block();
#pragma unroll
    for (int half = kWarp / 2; half >= 1; half /= 2) {
      sum += __shfl_down_sync(kAllLanes, sum, static_cast<unsigned int>(half));
    }
    return __shfl_sync(kAllLanes, sum, 0);
  }

 private:
  __device__ __forceinline__ float fold_own() {
#pragma unroll
    for (int half = kSumLanes / kThreads / 2; half >= 1; half /= 2) {
#pragma unroll
      for (int m = 0; m < half; ++m) sums[m] += sums[m + half];
    }
    return sums[0];
  }

  // Until as many lanes are left as a warp has threads.
  __device__ __forceinline__ float fold_in_block() {
    LaneSums& lanes = block_shared<LaneSums>();
    const auto lane = static_cast<int>(threadIdx.x);
    lanes.of[lane] = sums[0];
    __syncthreads();
    for (int half = kSumLanes / 2; half >= kWarp; half /= 2) {
      if (lane < half) lanes.of[lane] += lanes.of[lane + half];
      __syncthreads();
    }
    const float left = lanes.of[lane % kWarp];
    __syncthreads();  // before the lanes are written anew
    return left;
  }
};

// A row and its threads. Each sees the elements of its lanes alone, so that it may read what it has
// written.
template <typename Number, int kThreads>
struct NormRow {
  const NormTask& task;
  int64_t start;  // in all rows
  const Number* row;
  int thread;

  __device__ __forceinline__ NormRow(const NormTask& norm, int64_t index)
      : task(norm),
        start(index * norm.size),
        row(static_cast<const Number*>(norm.x) + start),
        thread(static_cast<int>(threadIdx.x) % kThreads) {
    if (task.residual != nullptr) add_residual(static_cast<Number*>(task.residual) + start);
  }

  __device__ __forceinline__ void normalise() const {
    const auto count = static_cast<float>(task.size);
    const bool is_centred = task.is_centred;
    float mean = 0.0f;
    if (is_centred) mean = sum([](float x, float s) { return s + x; }) / count;
    const float squares = sum([mean, is_centred](float x, float s) {
      const float d = is_centred ? x - mean : x;
      return fused(d, d, s);
    });
    const float factor = 1.0f / square_root(squares / count + task.epsilon);
    Number* result = static_cast<Number*>(task.result) + start;
    for (int64_t k = thread; k < task.size; k += kThreads) {
      const float x = widen(row[k]);
      result[k] = narrow<Number>(scaled((is_centred ? x - mean : x) * factor, k));
    }
  }

 private:
  // The residual becomes its sum with x, and what is normalised.
  __device__ __forceinline__ void add_residual(Number* residual) {
    for (int64_t k = thread; k < task.size; k += kThreads) {
      residual[k] = narrow<Number>(widen(row[k]) + widen(residual[k]));
    }
    row = residual;
  }

  template <typename Add>
  __device__ __forceinline__ float sum(const Add& add) const {
    OwnLanes<kThreads> lanes;
#pragma unroll
    for (int m = 0; m < kSumLanes / kThreads; ++m) {
      for (int64_t k = thread + m * kThreads; k < task.size; k += kSumLanes) {
        lanes.sums[m] = add(widen(row[k]), lanes.sums[m]);
      }
    }
    return lanes.fold();
  }

  __device__ __forceinline__ float scaled(float x, int64_t k) const {
    if (task.weight.start == nullptr) return x;
    const float weight =
        read_number(task.weight.start, task.weight.format, k) + task.weight_offset;
    if (task.bias.start == nullptr) return x * weight;
    return fused(x, weight, read_number(task.bias.start, task.bias.format, k));
  }
};

constexpr int kNormThreads = kSumLanes;

template <int kThreads>
inline constexpr int kNormRows = kNormThreads / kThreads;  // of a block of threads

template <int kThreads>
__device__ __forceinline__ int64_t norm_row() {
  return int64_t{blockIdx.x} * kNormRows<kThreads> + threadIdx.x / kThreads;
}

template <typename Number, int kThreads>
__global__ void __launch_bounds__(kNormThreads) norm_kernel(NormTask task) {
  wait_for_earlier_kernels();
  const int64_t row = norm_row<kThreads>();
  if (row < task.rows) NormRow<Number, kThreads>(task, row).normalise();
}

// What a row's threads have written, all of them see afterwards.
template <int kThreads>
__device__ __forceinline__ void wait_for_row() {
  if constexpr (kThreads == kWarp) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

template <typename Number, int kThreads>
__global__ void __launch_bounds__(kNormThreads)
    norm_digits_kernel(NormTask task, DigitTarget target) {
  wait_for_earlier_kernels();
  clear_counters(target);
  const int64_t row = norm_row<kThreads>();
  if (row >= task.rows) return;
  NormRow<Number, kThreads>(task, row).normalise();
  wait_for_row<kThreads>();
  const StoredRows<Number> results{static_cast<const Number*>(task.result), task.size};
  const StepCounts counts(target.shape);
  const int warp = static_cast<int>(threadIdx.x) % kThreads / kWarp;
  for (int block = warp; block < counts.blocks(); block += kThreads / kWarp) {
    quantise_block(target, results, row, counts, block);
  }
}

// Calls use(a number of the format, the threads of a row) and returns what it does.
template <typename Use>
cudaError_t with_norm(const NormTask& task, const Use& use) {
  return with_number(task.format, [&](auto number) {
    return task.size <= kSumLanes ? use(number, std::integral_constant<int, kWarp>())
                                  : use(number, std::integral_constant<int, kNormThreads>());
  });
}

template <int kThreads>
dim3 norm_grid(const NormTask& task) {
  return dim3(static_cast<unsigned int>(divide_up(task.rows, kNormRows<kThreads>)));
}

cudaError_t launch_portable_norm(const NormTask& task, cudaStream_t stream) {
  if (task.rows == 0) return cudaSuccess;
  return with_norm(task, [&](auto number, auto threads) {
    return launch_dependent(norm_grid<threads>(task), kNormThreads, 0, stream,
                            norm_kernel<decltype(number), threads>, task);
  });
}

cudaError_t launch_portable_norm_digits(const NormTask& task, const DigitTarget& target,
                                        cudaStream_t stream) {
  if (task.rows == 0) return cudaSuccess;
  return with_norm(task, [&](auto number, auto threads) {
    return launch_dependent(norm_grid<threads>(task), kNormThreads, 0, stream,
                            norm_digits_kernel<decltype(number), threads>, task, target);
  });
}

}  // namespace vllm_fork
