// float32 as integers in the same order.
//
// Specification: docs/numerics/operations.md, "Order of logits".
#pragma once

#include "float_bits.h"

namespace vllm_fork {

// A larger number has a larger key; both zeros have the same, and every NaN has the largest.
VLLM_FORK_INLINE int32_t ordered_key(float value) {
  const auto bits = static_cast<int32_t>(bits_of(value + 0.0f));
  const int32_t key = bits ^ ((bits >> 31) & 0x7fffffff);
  const bool is_nan = (bits & 0x7fffffff) > static_cast<int32_t>(kInfinityBits);
  return is_nan ? 0x7fffffff : key;
}

}  // namespace vllm_fork
