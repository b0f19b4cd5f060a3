// The digits of a block of numbers: a loop that translation units compile with their own flags.
//
// Everything here has internal linkage (see portable/macros.h for what goes wrong otherwise).
#pragma once

#include <algorithm>
#include <cstdint>

#include "portable/product.h"
#include "portable/product_layout.h"

namespace vllm_fork {
namespace {

struct BlockDigits {
  alignas(64) int8_t high[kBlock];
  alignas(64) int8_t low[kBlock];
};

// Fills the digits of `count` numbers and returns their exponent; only if it is in the range of
// the specification do the digits mean anything.
template <bool kBreakTies>
VLLM_FORK_INLINE int split_block(const float* values, int64_t count, int least_exponent,
                                 BlockDigits& digits) {
  uint32_t largest = 0;
  for (int64_t k = 0; k < count; ++k) {
    largest = std::max(largest, bits_of(values[k]) & ~kSignBit);
  }
  const int exponent = block_exponent(largest, least_exponent);
  const float scale = power_of_two(-exponent);
  for (int64_t k = 0; k < count; ++k) {
    const int32_t rounded = round_to_integer(values[k] * scale);
    const int32_t v = kBreakTies ? break_tie(rounded) : rounded;
    digits.high[k] = static_cast<int8_t>(upper_digit(v));
    digits.low[k] = static_cast<int8_t>(lower_digit(v));
  }
  return exponent;
}

// Fills up with zeros from `count` to `padded`.
VLLM_FORK_INLINE void pad_digits(int64_t count, int64_t padded, BlockDigits& digits) {
  std::fill(digits.high + count, digits.high + padded, int8_t{0});
  std::fill(digits.low + count, digits.low + padded, int8_t{0});
}

}  // namespace
}  // namespace vllm_fork
