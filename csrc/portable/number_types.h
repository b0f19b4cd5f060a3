// The formats of numbers as types, for loops over numbers in memory.
#pragma once

#include "portable/number_formats.h"

namespace vllm_fork {

struct Bfloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

VLLM_FORK_INLINE float widen(float value) { return value; }
VLLM_FORK_INLINE float widen(Bfloat16 value) { return from_bfloat16(value.bits); }
VLLM_FORK_INLINE float widen(Float16 value) { return from_float16(value.bits); }

template <typename Number>
VLLM_FORK_INLINE Number narrow(float value);

template <>
VLLM_FORK_INLINE float narrow<float>(float value) {
  return to_float32(value);
}

template <>
VLLM_FORK_INLINE Bfloat16 narrow<Bfloat16>(float value) {
  return Bfloat16{to_bfloat16(value)};
}

template <>
VLLM_FORK_INLINE Float16 narrow<Float16>(float value) {
  return Float16{to_float16(value)};
}

}  // namespace vllm_fork
