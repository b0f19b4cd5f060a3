// Functions of float64 for the tables of rotary embeddings, which are made once.
//
// Specification: docs/numerics/operations.md, "Rotary tables". Nothing here is fused. The errors
// are a few units of 2^-53, so a float32 made of a result is the nearest one but for one in 2^27.
#pragma once

#include <cstdint>
#include <cstring>

#include "portable/macros.h"

namespace vllm_fork {

VLLM_FORK_INLINE uint64_t bits_of_double(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

VLLM_FORK_INLINE double double_of(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// To the nearest integer, ties to even, for |value| <= 2^51.
constexpr double kDoubleRounder = 0x1.8p52;

VLLM_FORK_INLINE double round_double(double value) {
  return (value + kDoubleRounder) - kDoubleRounder;
}

// ln x for a positive normal x: 2 * atanh((m - 1) / (m + 1)) + e * ln 2, x = m * 2^e.
VLLM_FORK_INLINE double logarithm64(double x) {
  const uint64_t bits = bits_of_double(x);
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdu;
  const int64_t e = static_cast<int64_t>(bits - kRootHalf) >> 52;
  const double m = double_of(bits - (static_cast<uint64_t>(e) << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double p = 0.0;  // s^2 is at most 0.0295, so that 11 terms are enough
  for (int k = 21; k >= 3; k -= 2) p = (p + 1.0 / k) * square;
  const auto exponent = static_cast<double>(e);
  // ln 2 in two parts, of which the first has so few bits that its products are exact.
  return exponent * 0x1.62e42feep-1 + (2.0 * (s + s * p) + exponent * 0x1.a39ef35793c76p-33);
}

// e^x for |x| <= 700.
VLLM_FORK_INLINE double exponential64(double x) {
  const double n = round_double(x * 0x1.71547652b82fep+0);
  const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  double p = 1.0;  // Taylor's series: |r| is at most 0.347, and r^14 / 14! below 2^-57
  for (int k = 13; k >= 1; --k) p = 1.0 + p * r / k;
  return p * double_of(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
}

// sin and cos of 0 <= x <= 2^21.
VLLM_FORK_INLINE void sine_and_cosine(double x, double* sine, double* cosine) {
  const double n = round_double(x * 0x1.45f306dc9c883p-1);
  // pi / 2 in three parts; the first two have at most 32 bits and n at most 21, so that their
  // products are exact.
  double r = x - n * 0x1.921fb544p+0;
  r = r - n * 0x1.0b4611a6p-34;
  r = r - n * 0x1.3198a2e037073p-69;
  const double square = r * r;
  double s = 0.0;  // Taylor's series: |r| is at most 0.786
  for (int k = 17; k >= 3; k -= 2) s = (1.0 - s) * square / (k * (k - 1));
  double c = 0.0;
  for (int k = 18; k >= 2; k -= 2) c = (1.0 - c) * square / (k * (k - 1));
  s = r - r * s;
  c = 1.0 - c;
  const auto quadrant = static_cast<int64_t>(n) & 3;
  *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
  *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
}

}  // namespace vllm_fork
