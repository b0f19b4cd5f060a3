// Rows of numbers as integers of 16 bits and one power of two: what attention multiplies.
//
// Specification: docs/numerics/attention.md, "Rows of integers".
#pragma once

#include "portable/float_bits.h"

namespace vllm_fork {

// A row's scale is a byte: the exponent of 2^scale as float32 has it, so 127 stands for 1.
constexpr uint32_t kSmallestScale = 64;  // 2^-63
constexpr uint32_t kInvalidScale = 255;  // of a row with a number that is not finite

// The smallest exponent e >= least with 127 * 256 * 2^e above the largest magnitude in a block, whose
// bits are `largest`. A NaN or an infinity has one beyond the greatest.
VLLM_FORK_INLINE int block_exponent(uint32_t largest, int least) {
  constexpr int kFractionBits = 14;        // of 127 * 256 = 1.984375 * 2^14
  constexpr uint32_t kToNextOctave = 0x20000;  // carries from 1.984375 on
  const int exponent = static_cast<int>((largest + kToNextOctave) >> 23) - 127 - kFractionBits;
  return exponent < least ? least : exponent;
}

// The scale of a row whose largest magnitude has these bits: its integers are at most 127 * 256, so
// that their upper digit fits a signed byte.
VLLM_FORK_INLINE uint32_t scale_of(uint32_t largest_bits) {
  if (largest_bits >= kInfinityBits) return kInvalidScale;
  constexpr int kBias = 127;
  const int least = static_cast<int>(kSmallestScale) - kBias;
  return static_cast<uint32_t>(block_exponent(largest_bits, least) + kBias);
}

// What the integers of a row stand for multiples of; 0 for an invalid one.
VLLM_FORK_INLINE float unit_of(uint32_t scale) {
  return float_of((scale == kInvalidScale ? 0 : scale) << 23);
}

// What a row is multiplied with to make it integers; 0 for an invalid one.
VLLM_FORK_INLINE float to_integers(uint32_t scale) {
  return scale == kInvalidScale ? 0.0f : float_of((254 - scale) << 23);
}

// An element of a row of this scale as an integer; `factor` is to_integers(scale).
VLLM_FORK_INLINE int16_t row_integer(float x, uint32_t scale, float factor) {
  // Its low bits are the integer.
  const uint32_t rounded = bits_of(x * factor + kRounder);
  return static_cast<int16_t>(scale == kInvalidScale ? 0 : rounded);
}

// An integer is 256 * upper + lower with digits in -127..127 and -128..127.
VLLM_FORK_INLINE int32_t lower_digit(int32_t integer) { return static_cast<int8_t>(integer); }
VLLM_FORK_INLINE int32_t upper_digit(int32_t integer) {
  return (integer - lower_digit(integer)) >> 8;
}

}  // namespace vllm_fork
