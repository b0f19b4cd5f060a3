// Rows of logits that several blocks of threads share, and what these find together.
//
// Each leaves what it finds of its part in memory; a later launch combines that. All combinations
// are of integers and exact, so that neither their order nor the number of parts changes a bit.
#pragma once

#include "cuda/logits/logits.h"
#include "cuda/primitives/block_reduce.cuh"
#include "cuda/primitives/device.cuh"
#include "cuda/primitives/numbers.cuh"
#include "portable/ordered_key.h"
#include "portable/product_layout.h"

namespace vllm_fork {

// The logits of a part, at least, where it is a question of occupying a GPU, and at most.
constexpr int64_t kFewestOfPart = 2 * kRowThreads;
constexpr int64_t kMostOfPart = int64_t{1} << 14;

__device__ __forceinline__ bool is_finite(float x) {
  return magnitude(x) < float_of(kInfinityBits);
}

// The block's row.
template <typename Number>
struct LogitRow {
  const Number* start;
  int64_t count;

  __device__ __forceinline__ explicit LogitRow(const LogitRows& logits)
      : start(static_cast<const Number*>(logits.start) + int64_t{blockIdx.x} * logits.stride),
        count(logits.count) {}

  __device__ __forceinline__ float operator()(int64_t i) const { return widen(start[i]); }
};

// The block's part of its row: the logits first .. last - 1, none if there are too few. A part
// begins at a multiple of 4, as the noise of sampling does.
struct RowPart {
  int64_t row;
  int64_t part;
  int64_t first;
  int64_t last;

  __device__ __forceinline__ RowPart(int64_t count, const RowParts& parts)
      : row(blockIdx.x), part(blockIdx.y) {
    const int64_t size = divide_up(divide_up(count, parts.count), 4) * 4;
    first = least(part * size, count);
    last = least(first + size, count);
  }

  // Calls use(i) for each logit, those of a thread in ascending order.
  template <typename Use>
  __device__ __forceinline__ void for_each_index(const Use& use) const {
    for (int64_t i = first + threadIdx.x; i < last; i += kRowThreads) use(i);
  }

  // The same, one after the other: of a kernel that needs its registers for more.
  template <typename Use>
  __device__ __forceinline__ void for_each_in_turn(const Use& use) const {
#pragma unroll 1
    for (int64_t i = first + threadIdx.x; i < last; i += kRowThreads) use(i);
  }
};

// Where the parts of a row leave a number each. There are two such places, 0 and 1.
template <typename T>
struct FoundNumbers {
  T* of_row;
  int64_t count;

  __device__ __forceinline__ FoundNumbers(const RowParts& parts, int place, int64_t row)
      : of_row(static_cast<T*>(parts.memory) + (row * 2 + place) * parts.count),
        count(parts.count) {}

  __device__ __forceinline__ void leave(int64_t part, T number) const {
    if (threadIdx.x == 0) of_row[part] = number;
  }

  // combine(...) of all, in every lane of each warp that calls this; `none` changes nothing.
  template <typename Combine>
  __device__ __forceinline__ T all(T none, const Combine& combine) const {
    T own = none;
#pragma unroll 1  // a few numbers, which are not worth registers
    for (int64_t i = threadIdx.x % kWarp; i < count; i += kWarp) own = combine(own, of_row[i]);
    return warp_reduce(own, combine);
  }
};

using FoundRanks = FoundNumbers<uint64_t>;
using FoundSums = FoundNumbers<int64_t>;

__device__ __forceinline__ uint64_t higher_rank(uint64_t a, uint64_t b) { return a > b ? a : b; }

__device__ __forceinline__ uint64_t largest_of(const FoundRanks& ranks) {
  return ranks.all(0, higher_rank);
}

__device__ __forceinline__ int64_t sum_of(const FoundSums& sums) {
  return sums.all(0, [](int64_t a, int64_t b) { return a + b; });
}

// The first of each part, in place 0.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads) first_of_parts_kernel(LogitRows logits,
                                                                     RowParts parts) {
  const LogitRow<Number> row(logits);
  const RowPart own(row.count, parts);
  uint64_t best = 0;
  own.for_each_index([&](int64_t i) { best = higher_rank(best, rank_of(row(i), i)); });
  FoundRanks(parts, 0, own.row).leave(own.part, block_largest(best));
}

inline dim3 block_for_each_row(const LogitRows& logits) {
  return dim3(static_cast<unsigned int>(logits.rows));
}

// Launches kernels whose blocks have a part of a row each.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_parts(const LogitRows& logits, const RowParts& parts, cudaStream_t stream,
                         void (*kernel)(LogitRows, RowParts, Parameters...),
                         Arguments... arguments) {
  const dim3 grid(static_cast<unsigned int>(logits.rows), static_cast<unsigned int>(parts.count));
  return launch(grid, kRowThreads, 0, stream, kernel, logits, parts, arguments...);
}

}  // namespace vllm_fork
