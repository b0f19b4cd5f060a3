// The floating-point types of models, and how their bits become float's and back.
//
// All of it is integer arithmetic, or float arithmetic on normal numbers, so that a processor that
// flushes subnormals to zero computes the same.
#pragma once

#include <cstdint>
#include <cstring>

#include "macros.h"

namespace vllm_fork {

enum class FloatType { kFloat, kHalf, kBFloat16 };

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

inline constexpr uint32_t kMagnitude = 0x7fffffffu;  // of a float: everything but the sign
inline constexpr uint32_t kInfinity = 0x7f800000u;
inline constexpr uint32_t kCanonicalNaN = 0x7fc00000u;

VLLM_FORK_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

VLLM_FORK_INLINE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// For exponents of normal numbers, -126 to 127.
VLLM_FORK_INLINE float power_of_two(int exponent) {
  return float_of(static_cast<uint32_t>(exponent + 127) << 23);
}

VLLM_FORK_INLINE float widen(float value) { return value; }

VLLM_FORK_INLINE float widen(BFloat16 value) {
  return float_of(static_cast<uint32_t>(value.bits) << 16);
}

// A subnormal half is m * 2^-24: with the exponent of 2^-14 its bits say 2^-14 + m * 2^-24.
VLLM_FORK_INLINE float widen(Half value) {
  constexpr uint32_t kRebias = (127 - 15) << 23;
  constexpr uint32_t kSmallestNormal = 0x38800000u;  // 2^-14
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t shifted = static_cast<uint32_t>(value.bits & 0x7fff) << 13;
  const uint32_t exponent = shifted & (0x1fu << 23);
  const float subnormal = float_of(shifted + kSmallestNormal) - float_of(kSmallestNormal);
  const uint32_t normal = shifted + kRebias + (exponent == (0x1fu << 23) ? kRebias : 0);
  return float_of(sign | (exponent == 0 ? bits_of(subnormal) : normal));
}

// narrow<T> rounds to nearest, ties to even; every NaN becomes the positive quiet one without a
// payload.
template <typename T>
VLLM_FORK_INLINE T narrow(float value);

template <>
VLLM_FORK_INLINE float narrow<float>(float value) {
  const uint32_t bits = bits_of(value);
  return float_of((bits & kMagnitude) > kInfinity ? kCanonicalNaN : bits);
}

template <>
VLLM_FORK_INLINE BFloat16 narrow<BFloat16>(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool is_nan = (bits & kMagnitude) > kInfinity;
  return BFloat16{static_cast<uint16_t>(is_nan ? 0x7fc0 : rounded)};
}

// Below 2^-14, adding 1/2 leaves the multiples of 2^-24, a half's subnormals, in the low bits.
VLLM_FORK_INLINE uint32_t narrow_magnitude_to_half(uint32_t magnitude) {
  constexpr uint32_t kRebias = (127 - 15) << 23;
  constexpr uint32_t kSmallestNormal = 0x38800000u;  // 2^-14
  constexpr uint32_t kOverflow = 0x477ff000u;        // 65520, halfway from the largest to 2^16
  constexpr uint32_t kOneHalf = 0x3f000000u;
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - kOneHalf;
  const uint32_t normal = (magnitude - kRebias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  const uint32_t number = magnitude >= kOverflow ? 0x7c00 : finite;
  return magnitude > kInfinity ? 0x7e00 : number;
}

template <>
VLLM_FORK_INLINE Half narrow<Half>(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & kMagnitude;
  const uint32_t sign = magnitude > kInfinity ? 0 : (bits >> 16) & 0x8000;
  return Half{static_cast<uint16_t>(sign | narrow_magnitude_to_half(magnitude))};
}

}  // namespace vllm_fork
