// What the recurrences of layers with states are made of.
//
// Specification: docs/numerics/states.md.
#pragma once

#include "portable/elementary.h"

namespace vllm_fork {

constexpr float kSquaredLengthEpsilon = 1e-6f;  // of what queries and keys are divided by
constexpr float kSmallestDecay = 0x1p-64f;

// e^exponent, the factor by which a state decays. What is too small to be seen in a sum counts 0,
// so that products with it are not subnormal, which makes many CPUs slow.
VLLM_FORK_INLINE float state_decay(float exponent) {
  const float decay = exponential(exponent);
  return decay < kSmallestDecay ? 0.0f : decay;
}

// How long a step of Mamba2 is, within limits.
VLLM_FORK_INLINE float time_step(float dt, float bias, float smallest, float largest) {
  float step = softplus(dt + bias);
  step = step < smallest ? smallest : step;
  return step > largest ? largest : step;
}

// An element of a state after a token.
VLLM_FORK_INLINE float next_state(float element, float decay, float key, float value) {
  return fused(key, value, element * decay);
}

// What the delta rule adds to a state for a key: `recalled` is what the state holds for it.
VLLM_FORK_INLINE float correction(float value, float recalled, float decay, float strength) {
  return fused(-decay, recalled, value) * strength;
}

// By what a query or key is multiplied to have the length 1.
VLLM_FORK_INLINE float reciprocal_length(float squares) {
  return 1.0f / square_root(squares + kSquaredLengthEpsilon);
}

}  // namespace vllm_fork
