// The operations on float32 that the portable arithmetic is made of, for g++ and nvcc.
//
// Specification: docs/numerics/operations.md. A sum, product, quotient or square root is one IEEE
// 754 operation, rounded to the nearest, ties to even; no compiler may fuse or reorder them: the
// library is built with -ffp-contract=off and -fmad=false. What is fused is written as such.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "portable/macros.h"

namespace vllm_fork {

VLLM_FORK_INLINE uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

VLLM_FORK_INLINE float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// a * b + c, rounded once. Exact on a CPU without the instruction too: the C library sees to that.
VLLM_FORK_INLINE float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

VLLM_FORK_INLINE float square_root(float value) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(value);
#else
  return __builtin_sqrtf(value);
#endif
}

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint32_t kNanBits = 0x7fc00000u;  // of every NaN that is written

VLLM_FORK_INLINE float magnitude(float value) { return float_of(bits_of(value) & ~kSignBit); }

// The magnitude of the first, which must have no sign, with the sign of the second.
VLLM_FORK_INLINE float with_sign_of(float value, float sign) {
  return float_of(bits_of(value) | (bits_of(sign) & kSignBit));
}

// 2^exponent; 0 below the smallest normal number, infinity above the largest.
VLLM_FORK_INLINE float power_of_two(int32_t exponent) {
  int32_t biased = exponent + 127;
  biased = biased < 0 ? 0 : biased;
  biased = biased > 255 ? 255 : biased;
  return float_of(static_cast<uint32_t>(biased) << 23);
}

// To the nearest integer, ties to even, for |value| <= 2^22: adding this number leaves no bit for a
// fraction.
constexpr float kRounder = 0x1.8p23f;

VLLM_FORK_INLINE float round_to_even(float value) { return (value + kRounder) - kRounder; }

}  // namespace vllm_fork
