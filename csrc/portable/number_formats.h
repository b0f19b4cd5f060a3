// Conversions between float32 and the two 16-bit formats, free of branches.
//
// Specification: docs/numerics/operations.md, "Formats".
#pragma once

#include "portable/float_bits.h"

namespace vllm_fork {

enum class Format { kFloat32, kBfloat16, kFloat16 };

VLLM_FORK_INLINE int64_t size_of(Format format) { return format == Format::kFloat32 ? 4 : 2; }

VLLM_FORK_INLINE float from_bfloat16(uint16_t bits) {
  return float_of(static_cast<uint32_t>(bits) << 16);
}

VLLM_FORK_INLINE uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>(value != value ? kNanBits >> 16 : rounded);
}

// The exponent's bias is 15 instead of 127. A product with a power of two moves it by 112, and
// makes subnormal numbers normal.
VLLM_FORK_INLINE float from_float16(uint16_t bits) {
  const uint32_t wide = bits;
  const float finite = float_of((wide & 0x7fff) << 13) * 0x1p112f;
  const uint32_t special = (wide & 0x7c00) == 0x7c00 ? kInfinityBits : 0;
  return float_of(bits_of(finite) | special | (wide & 0x8000) << 16);
}

VLLM_FORK_INLINE uint16_t to_float16(float value) {
  const uint32_t sign = bits_of(value) >> 16 & 0x8000;
  const uint32_t bits = bits_of(value) & ~kSignBit;
  // Subnormal numbers are multiples of 2^-24, as are the float32 numbers from 1/2 to 1.
  const uint32_t subnormal = bits_of(float_of(bits) + 0.5f) - bits_of(0.5f);
  const uint32_t normal = (bits + 0xfff + ((bits >> 13) & 1) - (112u << 23)) >> 13;
  uint32_t rounded = bits < bits_of(0x1p-14f) ? subnormal : normal;
  rounded = bits >= bits_of(65520.0f) ? 0x7c00 : rounded;
  return static_cast<uint16_t>(bits > kInfinityBits ? 0x7e00 : sign | rounded);
}

// A float32 that is written as such: every NaN has the same bits.
VLLM_FORK_INLINE float to_float32(float value) {
  return value != value ? float_of(kNanBits) : value;
}

}  // namespace vllm_fork
