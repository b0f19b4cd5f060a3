// Eight channels of a block in each lane of a warp: how they are read, and their digits.
#pragma once

#include <cstring>

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/warp_reduce.cuh"
#include "cuda/primitives/words.cuh"
#include "cuda/product/digit_tiles.cuh"
#include "portable/number_types.h"
#include "portable/product.h"

namespace vllm_fork {

// Reads eight things, of which the first `count` are there; in few loads if their place allows.
template <typename T>
__device__ __forceinline__ void read_octet(const T* from, int count, T (&to)[kOctet]) {
  constexpr size_t kAlignment = sizeof to < 16 ? sizeof to : 16;
  if (count >= kOctet && reinterpret_cast<uintptr_t>(from) % kAlignment == 0) {
    memcpy(to, __builtin_assume_aligned(from, kAlignment), sizeof to);
    return;
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) to[i] = i < count ? from[i] : T{};
}

// Writes the first `count` of eight things, in few stores if their place allows.
template <typename T>
__device__ __forceinline__ void write_octet(T* to, int count, const T (&from)[kOctet]) {
  constexpr size_t kAlignment = sizeof from < 16 ? sizeof from : 16;
  if (count >= kOctet && reinterpret_cast<uintptr_t>(to) % kAlignment == 0) {
    void* start = to;  // nvcc 13.0 fails with a pointer of another type
    memcpy(__builtin_assume_aligned(start, kAlignment), from, sizeof from);
    return;
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    if (i < count) to[i] = from[i];
  }
}

template <typename Number>
__device__ __forceinline__ void read_values(const Number* from, int count,
                                            float (&values)[kOctet]) {
  Number numbers[kOctet];
  read_octet(from, count, numbers);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) values[i] = widen(numbers[i]);
}

// Multiplies with 2^(kSign * exponent) of each channel, from `channel` on; null means all are 0.
template <int kSign>
__device__ __forceinline__ void equalise(const int8_t* exponents, int64_t channel, int count,
                                         float (&values)[kOctet]) {
  if (exponents == nullptr) return;
  int8_t own[kOctet];
  read_octet(exponents + channel, count, own);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) values[i] = values[i] * power_of_two(kSign * own[i]);
}

// Both digits of a lane's eight channels, and the exponent of the warp's whole block.
struct OctetDigits {
  Words2 high;
  Words2 low;
  int exponent;
};

// Called by all lanes of a warp; channels that the block lacks are zeros.
template <bool kBreakTies>
__device__ __forceinline__ OctetDigits split_octet(const float (&values)[kOctet],
                                                   int least_exponent) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const uint32_t bits = bits_of(values[i]) & ~kSignBit;
    largest = bits > largest ? bits : largest;
  }
  OctetDigits digits{};
  digits.exponent = block_exponent(warp_largest(largest), least_exponent);
  const float scale = power_of_two(-digits.exponent);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const int32_t rounded = round_to_integer(values[i] * scale);
    const int32_t v = kBreakTies ? break_tie(rounded) : rounded;
    digits.high.words[i / 4] |= (static_cast<uint32_t>(upper_digit(v)) & 255) << (i % 4 * 8);
    digits.low.words[i / 4] |= (static_cast<uint32_t>(lower_digit(v)) & 255) << (i % 4 * 8);
  }
  return digits;
}

}  // namespace vllm_fork
