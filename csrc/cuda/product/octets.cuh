// Eight channels of a block in each lane of a warp: how they are read, and their digits.
#pragma once

#include <cstring>
#include <type_traits>

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/warp_reduce.cuh"
#include "cuda/primitives/words.cuh"
#include "cuda/product/digit_tiles.cuh"
#include "portable/number_types.h"
#include "portable/product.h"

namespace vllm_fork {

// Eight things as they are moved in global memory: by words of at most 16 bytes.
template <typename T>
struct OctetWords {
  using Words = std::conditional_t<sizeof(T) == 1, Words2, Words4>;
  static constexpr int kCount = static_cast<int>(sizeof(T[kOctet]) / sizeof(Words));
  Words words[kCount];

  static __device__ __forceinline__ bool are_at(uintptr_t places) {
    return places % sizeof(Words) == 0;
  }

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      load_global(reinterpret_cast<const uint8_t*>(from) + i * sizeof(Words), words[i]);
    }
  }
  __device__ __forceinline__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      store_global(reinterpret_cast<uint8_t*>(to) + i * sizeof(Words), words[i]);
    }
  }
};

// Reads eight things of global memory kCount times, each time `stride` further on; of each eight the
// first `count` are there. If their places allow it, all loads begin before any is waited for.
template <int kCount, typename T>
__device__ __forceinline__ void read_octets(const T* from, int64_t stride, int count,
                                            T (&to)[kCount][kOctet]) {
  using Octet = OctetWords<T>;
  const auto step = static_cast<uintptr_t>(stride) * sizeof(T);
  if (count >= kOctet && Octet::are_at(reinterpret_cast<uintptr_t>(from) | step)) {
    Octet octets[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) octets[k].load(from + k * stride);
    memcpy(to, octets, sizeof to);
    return;
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) to[k][i] = i < count ? from[k * stride + i] : T{};
  }
}

template <typename T>
__device__ __forceinline__ void read_octet(const T* from, int count, T (&to)[kOctet]) {
  T octets[1][kOctet];
  read_octets(from, 0, count, octets);
  memcpy(to, octets, sizeof to);
}

// Writes the first `count` of eight things.
template <typename T>
__device__ __forceinline__ void write_octet(T* to, int count, const T (&from)[kOctet]) {
  using Octet = OctetWords<T>;
  if (count >= kOctet && Octet::are_at(reinterpret_cast<uintptr_t>(to))) {
    Octet octet;
    memcpy(&octet, from, sizeof from);
    octet.store(to);
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
