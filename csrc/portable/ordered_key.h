// float32 as integers in the same order.
//
// Specification: docs/numerics/operations.md, "Order of logits".
#pragma once

#include "float_bits.h"

namespace vllm_fork {

// A larger number has a larger key; both zeros have the same, and every NaN has the largest.
// Choices are made with masks: of others a compiler makes branches, and no vectors.
VLLM_FORK_INLINE int32_t ordered_key(float value) {
  constexpr int32_t kAllButSign = 0x7fffffff;
  const auto bits = static_cast<int32_t>(bits_of(value + 0.0f));
  const int32_t key = bits ^ ((bits >> 31) & kAllButSign);
  const int32_t if_nan = (static_cast<int32_t>(kInfinityBits) - (bits & kAllButSign)) >> 31;
  return (key & ~if_nan) | (kAllButSign & if_nan);
}

}  // namespace vllm_fork
