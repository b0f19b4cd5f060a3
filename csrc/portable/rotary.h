// Rotary position embeddings: the tables, and the rotation of a pair.
//
// Specification: docs/numerics/operations.md, "Rotary embedding" and "Rotary tables".
#pragma once

#include "portable/double_functions.h"
#include "portable/float_bits.h"

namespace vllm_fork {

constexpr double kLargestAngle = 0x1p21;  // of a table's entries

// base^(-2 * index / size), the frequency of the pair `index` of `size` elements.
VLLM_FORK_INLINE float rotary_frequency(double base, int64_t index, int64_t size) {
  const double exponent = static_cast<double>(2 * index) / static_cast<double>(size);
  return static_cast<float>(exponential64(-(exponent * logarithm64(base))));
}

// The cosine and sine of position * frequency, times scale.
VLLM_FORK_INLINE void rotary_entry(int64_t position, float frequency, double scale, float* cosine,
                                   float* sine) {
  double s;
  double c;
  sine_and_cosine(static_cast<double>(position) * static_cast<double>(frequency), &s, &c);
  *cosine = static_cast<float>(c * scale);
  *sine = static_cast<float>(s * scale);
}

// (first, second) rotated by the angle.
VLLM_FORK_INLINE void rotate_pair(float* first, float* second, float cosine, float sine) {
  const float a = *first;
  const float b = *second;
  *first = fused(a, cosine, -(b * sine));
  *second = fused(b, cosine, a * sine);
}

}  // namespace vllm_fork
