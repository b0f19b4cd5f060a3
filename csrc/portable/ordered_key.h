// float32 as integers in the same order.
//
// Specification: docs/numerics/operations.md, "Order of logits".
#pragma once

#include "portable/float_bits.h"

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

// The number that has a key; NaN if that is the largest.
VLLM_FORK_INLINE float number_of_key(int32_t key) {
  return key == 0x7fffffff ? float_of(kNanBits)
                           : float_of(static_cast<uint32_t>(key < 0 ? key ^ 0x7fffffff : key));
}

// A key and an index as one number: larger keys first, of equal ones the lower index.
VLLM_FORK_INLINE uint64_t rank_of_key(int32_t key, int64_t index) {
  return static_cast<uint64_t>(static_cast<uint32_t>(key) ^ kSignBit) << 32 |
         (0xffffffffu - static_cast<uint32_t>(index));
}
VLLM_FORK_INLINE uint64_t rank_of(float value, int64_t index) {
  return rank_of_key(ordered_key(value), index);
}
VLLM_FORK_INLINE int64_t index_of(uint64_t rank) {
  return 0xffffffffu - static_cast<uint32_t>(rank);
}

// A zero without its sign, whichever it was.
VLLM_FORK_INLINE float number_of_rank(uint64_t rank) {
  return number_of_key(static_cast<int32_t>(static_cast<uint32_t>(rank >> 32) ^ kSignBit));
}

}  // namespace vllm_fork
