// The rotation of a pair of a head, in place.
//
// Specification: docs/numerics/operations.md, "Rotary embedding".
#pragma once

#include "cuda/primitives/device.cuh"
#include "cuda/rows/rotary.h"
#include "portable/number_types.h"
#include "portable/rotary.h"

namespace vllm_fork {

template <typename Number>
__device__ __forceinline__ void rotate_in_place(const RotationTask& task, int64_t row,
                                                int64_t head, int64_t pair) {
  Number* elements =
      static_cast<Number*>(task.x) + row * task.row_stride + head * task.head_stride;
  Number* first = elements + (task.is_interleaved ? 2 * pair : pair);
  Number* second = elements + (task.is_interleaved ? 2 * pair + 1 : task.half + pair);
  const int64_t position = task.positions[row];
  float a = float_of(kNanBits);
  float b = a;
  if (position >= 0 && position < task.table_rows) {
    const float* cosines = task.table + position * 2 * task.half;
    a = widen(*first);
    b = widen(*second);
    rotate_pair(&a, &b, cosines[pair], cosines[task.half + pair]);
  }
  *first = narrow<Number>(a);
  *second = narrow<Number>(b);
}

}  // namespace vllm_fork
