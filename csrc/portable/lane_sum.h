// Sums of many float32 in one specified order.
//
// Specification: docs/numerics/operations.md, "Sums". Element k belongs to lane k % 256; a lane
// adds its elements in order; then the upper half of the lanes is added to the lower half until one
// is left. A GPU gives each lane to a thread.
#pragma once

#include "portable/float_bits.h"

namespace vllm_fork {

constexpr int kSumLanes = 256;

// Folds the lanes; they are changed.
VLLM_FORK_INLINE float fold_lanes(float* lanes) {
  for (int half = kSumLanes / 2; half >= 1; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

// The sum of `add(k, sum)` over k in 0..size-1, where add gives sum plus the element k.
template <typename Add>
VLLM_FORK_INLINE float lane_sum(int64_t size, const Add& add) {
  float lanes[kSumLanes] = {};
  int64_t k = 0;
  for (; k + kSumLanes <= size; k += kSumLanes) {
    for (int j = 0; j < kSumLanes; ++j) lanes[j] = add(k + j, lanes[j]);
  }
  for (int j = 0; j < size - k; ++j) lanes[j] = add(k + j, lanes[j]);
  return fold_lanes(lanes);
}

}  // namespace vllm_fork
