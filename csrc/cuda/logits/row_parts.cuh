// Rows of logits that several blocks of threads share, and what these find together.
//
// Each leaves what it finds of its part in memory; a later launch combines that. All combinations
// are of integers and exact, so that neither their order nor the number of parts changes a bit.
#pragma once

#include "cuda/logits/logits.h"
#include "cuda/primitives/block_reduce.cuh"
#include "cuda/primitives/device.cuh"
#include "portable/ordered_key.h"
#include "portable/product_layout.h"

namespace vllm_fork {

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

__device__ __forceinline__ uint64_t largest_of(const FoundRanks& ranks) {
  return ranks.all(0, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
}

__device__ __forceinline__ int64_t sum_of(const FoundSums& sums) {
  return sums.all(0, [](int64_t a, int64_t b) { return a + b; });
}

}  // namespace vllm_fork
