// Superblocks of a query that different blocks of threads attend to, and their merging.
//
// Specification: docs/numerics/attention.md, "Merging".
#pragma once

#include "cuda/attention/attention.h"
#include "cuda/attention/cache_rows.cuh"

namespace vllm_fork {

// The tokens first..last that a query sees.
struct SeenTokens {
  int32_t first;
  int32_t last;

  // Whether the pages of a sequence have room for them.
  __device__ __forceinline__ bool are_valid(const PagedAttention& task) const {
    return last >= 0 && last < task.width * task.cache.page_tiles * kTileTokens;
  }
};

__device__ __forceinline__ SeenTokens tokens_seen(int64_t position, int64_t window) {
  const int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
  return {static_cast<int32_t>(first), static_cast<int32_t>(position)};
}

// The sequence among whose numbered things thing `index` is; first_of(s) grows with s.
template <typename First>
__device__ __forceinline__ int64_t sequence_at(int64_t index, int64_t sequences,
                                               const First& first_of) {
  int64_t low = 0;
  int64_t high = sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (first_of(middle) <= index ? low : high) = middle;
  }
  return low;
}

// What a query has gathered of a superblock: its values, and behind them the rest.
struct Part {
  float* values;
  int64_t size;

  __device__ __forceinline__ Part(float* parts, const PagedAttention& task, int64_t splits,
                                  int64_t row, int64_t head, int64_t superblock)
      : values(parts + ((row * task.heads + head) * splits +
                        static_cast<uint32_t>(superblock) % static_cast<uint32_t>(splits)) *
                           (task.cache.head_size + 3)),
        size(task.cache.head_size) {}

  __device__ __forceinline__ void write(const Gathered& gathered, bool is_valid) const {
    values[size] = float_of(static_cast<uint32_t>(gathered.exponent));
    values[size + 1] = gathered.sum;
    values[size + 2] = is_valid ? 1.0f : 0.0f;
  }
  __device__ __forceinline__ Gathered gathered() const {
    return {static_cast<int32_t>(bits_of(values[size])), values[size + 1]};
  }
  __device__ __forceinline__ bool is_valid() const { return values[size + 2] != 0.0f; }
};

// Adds to what is gathered what is gathered elsewhere, and says how values follow.
__device__ __forceinline__ Rescaling merge(Gathered& there, const Gathered& coming) {
  const Rescaling by(there.exponent, coming.exponent);
  there.exponent = by.exponent;
  there.sum = there.sum * by.kept + coming.sum * by.added;
  return by;
}

// A token without a value.
struct Sink {
  bool is_valid;
  Gathered gathered;

  __device__ __forceinline__ explicit Sink(float score)
      : is_valid(magnitude(score) < float_of(kInfinityBits)) {
    const Weight weight(bounded_score((is_valid ? score : 0.0f) * kLog2E));
    gathered = {weight.exponent, weight.fraction};
  }
};

}  // namespace vllm_fork
