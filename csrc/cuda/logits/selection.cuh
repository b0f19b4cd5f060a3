// Which tokens of a row come first, by a block of threads: no sort, but a search for the last one.
//
// Specification: docs/numerics/operations.md, "Order of logits" and "Which tokens".
#pragma once

#include "cuda/primitives/block_reduce.cuh"
#include "portable/ordered_key.h"

namespace vllm_fork {

// Calls use(i) for each index below count, those of a thread in ascending order.
template <typename Use>
__device__ __forceinline__ void for_each_index(int64_t count, const Use& use) {
  for (int64_t i = threadIdx.x; i < count; i += kRowThreads) use(i);
}

// What a search step finds about the keys on either side of a pivot.
struct Sides {
  int64_t weight_from;   // of keys at the pivot and above
  int64_t smallest_from;
  int64_t largest_below;
};

// Of numbers x(i), each with a weight >= 0: those that stay if they are gone through in order until
// their weights reach a bound of at least 1, which all of them do.
template <typename Values, typename Weights>
struct Selection {
  const Values& x;
  const Weights& weight;
  int64_t count;
  int64_t bound;

  // The rank of the last one that stays.
  __device__ __forceinline__ uint64_t last_rank() const {
    const auto key = static_cast<int32_t>(last_key());
    int64_t above = 0;
    int64_t at = 0;
    int64_t largest = 0;
    for_each_index(count, [&](int64_t i) {
      const int32_t own = ordered_key(x(i));
      if (own < key) return;
      const int64_t w = weight(i);
      if (own > key) {
        above += w;
      } else {
        at += w;
        largest = w > largest ? w : largest;
      }
    });
    above = block_sum(above);
    at = block_sum(at);
    // Of equal numbers the first have equal weights, and those behind them none.
    const int64_t each = block_largest(largest);
    const int64_t ties = (bound - above + each - 1) / each;
    return rank_of_key(key, ties * each == at ? count - 1 : index_of_tie(key, ties));
  }

 private:
  // The largest key of which the weights from it on reach the bound. Each step cuts the range of
  // keys in two, and then to the keys that there are.
  __device__ __forceinline__ int64_t last_key() const {
    int64_t low = INT32_MAX;
    int64_t high = INT32_MIN;
    for_each_index(count, [&](int64_t i) {
      const int64_t key = ordered_key(x(i));
      low = key < low ? key : low;
      high = key > high ? key : high;
    });
    low = block_smallest(low);
    high = block_largest(high);
    while (low < high) {
      const int64_t pivot = low + (high - low + 1) / 2;
      const Sides sides = divide(pivot);
      if (sides.weight_from >= bound) {
        low = sides.smallest_from;
      } else {
        high = sides.largest_below;
      }
    }
    return low;
  }

  __device__ __forceinline__ Sides divide(int64_t pivot) const {
    Sides sides{0, INT32_MAX, INT32_MIN};
    for_each_index(count, [&](int64_t i) {
      const int64_t key = ordered_key(x(i));
      if (key < pivot) {
        sides.largest_below = key > sides.largest_below ? key : sides.largest_below;
      } else {
        sides.smallest_from = key < sides.smallest_from ? key : sides.smallest_from;
        sides.weight_from += weight(i);
      }
    });
    return {block_sum(sides.weight_from), block_smallest(sides.smallest_from),
            block_largest(sides.largest_below)};
  }

  // The index of the n-th number with a key, n from 1 on.
  __device__ __forceinline__ int64_t index_of_tie(int32_t key, int64_t n) const {
    for (int64_t start = 0;; start += kRowThreads) {
      const int64_t i = start + threadIdx.x;
      const bool is_tie = i < count && ordered_key(x(i)) == key;
      const int32_t before = block_sum_before(is_tie ? 1 : 0);
      const int64_t found = block_largest<int64_t>(is_tie && before + 1 == n ? i : -1);
      if (found >= 0) return found;
      n -= block_sum(is_tie ? 1 : 0);
    }
  }
};

template <typename Values, typename Weights>
__device__ __forceinline__ uint64_t last_rank(const Values& x, const Weights& weight,
                                              int64_t count, int64_t bound) {
  return Selection<Values, Weights>{x, weight, count, bound}.last_rank();
}

// The rank of number `limit` in order, from 1 on.
template <typename Values>
__device__ __forceinline__ uint64_t rank_at(const Values& x, int64_t count, int64_t limit) {
  return last_rank(x, [](int64_t) { return int64_t{1}; }, count, limit);
}

}  // namespace vllm_fork
