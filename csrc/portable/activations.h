// Activation functions of float32.
//
// Specification: docs/numerics/operations.md, "Activations".
#pragma once

#include "portable/elementary.h"

namespace vllm_fork {

VLLM_FORK_INLINE float silu(float x) { return times_sigmoid(x, x); }

VLLM_FORK_INLINE float quick_gelu(float x) { return times_sigmoid(x, 0x1.b3b646p+0f * x); }

// 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), since (1 + tanh(u)) / 2 is
// sigmoid(2 * u).
VLLM_FORK_INLINE float gelu_tanh(float x) {
  const float slope = fused(x * x, 0x1.2444f2p-4f, 0x1.988454p+0f);
  return times_sigmoid(x, x * slope);
}

// x * P(X <= x) of a normal X.
VLLM_FORK_INLINE float gelu(float x) {
  const float a = magnitude(x);
  const float clamped = a > 14.5f ? 14.5f : a;
  const float t = 1.0f / fused(clamped, 0.34375f, 1.0f);
  const float tail = gaussian(clamped, 0.5f) * scaled_normal_tail(t);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

VLLM_FORK_INLINE float relu(float x) { return x < 0.0f ? 0.0f : x; }

VLLM_FORK_INLINE float squared_relu(float x) { return relu(x) * relu(x); }

}  // namespace vllm_fork
