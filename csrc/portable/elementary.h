// Elementary functions of float32. Free of branches, so that a compiler makes vectors of them.
//
// Specification, accuracy and ranges: docs/numerics/operations.md, "Elementary functions".
// The polynomials come from tools/fit_polynomials.py.
#pragma once

#include "portable/float_bits.h"

namespace vllm_fork {

constexpr float kLog2E = 0x1.715476p+0f;

// e^x. Below -104 as at -104, where it is 0; above 89 as at 89, where it is infinite.
VLLM_FORK_INLINE float exponential(float x) {
  float clamped = x < -104.0f ? -104.0f : x;
  clamped = clamped > 89.0f ? 89.0f : clamped;
  const float shifted = fused(clamped, kLog2E, kRounder);
  const float n = shifted - kRounder;
  float r = fused(n, -0x1.62e4p-1f, clamped);
  r = fused(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6a5154p-10f;
  p = fused(p, r, 0x1.12397cp-7f);
  p = fused(p, r, 0x1.5558acp-5f);
  p = fused(p, r, 0x1.555492p-3f);
  p = fused(p, r, 0x1.fffffcp-2f);
  const float y = fused(p, r * r, r) + 1.0f;
  // 2^n in two factors: n is between -150 and 128.
  const auto exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(kRounder));
  const int32_t half = exponent >> 1;
  return y * power_of_two(half) * power_of_two(exponent - half);
}

// 2^f for |f| <= 1/2.
VLLM_FORK_INLINE float exponential2_of_fraction(float f) {
  float p = 0x1.416b5p-13f;
  p = fused(p, f, 0x1.5f082ep-10f);
  p = fused(p, f, 0x1.3b2dep-7f);
  p = fused(p, f, 0x1.c6af7cp-5f);
  p = fused(p, f, 0x1.ebfbdcp-3f);
  p = fused(p, f, 0x1.62e43p-1f);
  return fused(p, f, 1.0f);
}

// 2^x. Below -151 as at -151, where it is 0; above 129 as at 129, where it is infinite.
VLLM_FORK_INLINE float exponential2(float x) {
  float clamped = x < -151.0f ? -151.0f : x;
  clamped = clamped > 129.0f ? 129.0f : clamped;
  const float shifted = clamped + kRounder;
  const float y = exponential2_of_fraction(clamped - (shifted - kRounder));
  const auto exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(kRounder));
  const int32_t half = exponent >> 1;
  return y * power_of_two(half) * power_of_two(exponent - half);
}

// The natural logarithm.
VLLM_FORK_INLINE float logarithm(float x) {
  const bool is_subnormal = x < 0x1p-126f;
  const auto bits = static_cast<int32_t>(bits_of(is_subnormal ? x * 0x1p24f : x));
  // x is m * 2^exponent with m between the square roots of 1/2 and 2.
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float m = float_of(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(exponent) << 23));
  const auto e = static_cast<float>(is_subnormal ? exponent - 24 : exponent);
  const float f = m - 1.0f;
  const float square = f * f;
  float p = -0x1.38c9dep-4f;
  p = fused(p, f, 0x1.055ec6p-3f);
  p = fused(p, f, -0x1.0d8242p-3f);
  p = fused(p, f, 0x1.22d92ep-3f);
  p = fused(p, f, -0x1.54728ap-3f);
  p = fused(p, f, 0x1.99a01cp-3f);
  p = fused(p, f, -0x1.000226p-2f);
  p = fused(p, f, 0x1.555554p-2f);
  float y = p * square * f;
  y = fused(e, -0x1.bd0106p-13f, y);
  y = fused(square, -0.5f, y);
  y = fused(e, 0x1.63p-1f, f + y);
  y = x == float_of(kInfinityBits) ? x : y;
  y = x == 0.0f ? float_of(kSignBit | kInfinityBits) : y;
  return x >= 0.0f ? y : float_of(kNanBits);
}

// ln(1 + e^x), as the larger of x and 0 and what is left: neither overflows nor loses digits.
VLLM_FORK_INLINE float softplus(float x) {
  const float e = exponential(-magnitude(x));
  const float sum = 1.0f + e;
  // What the sum has lost of e is exact, and ln(a + b) is nearly ln(a) + b / a.
  const float rest = logarithm(sum) + (e - (sum - 1.0f)) / sum;
  return (x > 0.0f ? x : 0.0f) + rest;
}

VLLM_FORK_INLINE float hyperbolic_tangent(float x) {
  const float a = magnitude(x);
  const float square = a * a;
  float p = -0x1.750ce2p-8f;
  p = fused(p, square, 0x1.51f8cep-6f);
  p = fused(p, square, -0x1.b835a4p-5f);
  p = fused(p, square, 0x1.1106f6p-3f);
  p = fused(p, square, -0x1.555532p-2f);
  const float near = fused(p * square, a, a);
  const float e = exponential(-2.0f * a);
  const float far = (1.0f - e) / (1.0f + e);
  return with_sign_of(a < 0.625f ? near : far, x);
}

// x / (1 + e^-y), which is x * sigmoid(y): no intermediate result overflows.
VLLM_FORK_INLINE float times_sigmoid(float x, float y) {
  const float e = exponential(-magnitude(y));
  return (y < 0.0f ? x * e : x) / (1.0f + e);
}

VLLM_FORK_INLINE float sigmoid(float x) { return times_sigmoid(1.0f, x); }

// Q(a) * e^(a^2/2) of the normal distribution's upper tail Q, as a polynomial in
// t = 1 / (1 + 0.34375 * a), for a between 0 and 14.5.
VLLM_FORK_INLINE float scaled_normal_tail(float t) {
  float p = -0x1.d41c6ep-6f;
  p = fused(p, t, 0x1.2e3faep-3f);
  p = fused(p, t, -0x1.1e48cp-2f);
  p = fused(p, t, 0x1.9a12f6p-3f);
  p = fused(p, t, -0x1.79e042p-5f);
  p = fused(p, t, 0x1.da8ab8p-4f);
  p = fused(p, t, 0x1.da3faap-4f);
  p = fused(p, t, 0x1.1a0c28p-3f);
  p = fused(p, t, 0x1.18c8b6p-3f);
  return fused(p, t, 0x1.a80534p-21f);
}

// e^-(factor * a^2) with the rounding error of the square put back.
VLLM_FORK_INLINE float gaussian(float a, float factor) {
  const float square = a * a;
  const float error = fused(a, a, -square);
  const float e = exponential(-factor * square);
  return fused(e, -factor * error, e);
}

VLLM_FORK_INLINE float error_function(float x) {
  const float a = magnitude(x);
  const float square = a * a;
  float p = -0x1.3c566ap-11f;
  p = fused(p, square, 0x1.47c52ap-8f);
  p = fused(p, square, -0x1.b6a216p-6f);
  p = fused(p, square, 0x1.ce1beep-4f);
  p = fused(p, square, -0x1.8126eep-2f);
  p = fused(p, square, 0x1.06eba6p-3f);
  const float near = fused(p, a, a);
  const float clamped = a > 5.0f ? 5.0f : a;
  const float t = 1.0f / fused(clamped, 0x1.f1cd9cp-2f, 1.0f);  // 0.34375 * sqrt(2)
  const float tail = gaussian(clamped, 1.0f) * scaled_normal_tail(t);
  const float far = fused(tail, -2.0f, 1.0f);
  return with_sign_of(a < 0.875f ? near : far, x);
}

}  // namespace vllm_fork
