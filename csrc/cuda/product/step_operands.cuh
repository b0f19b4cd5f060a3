// Digits of a step as operands of tensor cores' products.
#pragma once

#include <cstdint>

#include "cuda/primitives/device.cuh"
#include "portable/number_formats.h"

namespace vllm_fork {

#if defined(VLLM_FORK_EMULATE_CUDA)

inline uint32_t take_bits(uint32_t word, uint32_t which, uint32_t others) {
  return (word & which) | others;
}

inline uint32_t add_pairs(uint32_t a, uint32_t b) {
  uint32_t sums = 0;
  for (int i = 0; i < 32; i += 16) {
    const float sum = from_bfloat16(static_cast<uint16_t>(a >> i)) +
                      from_bfloat16(static_cast<uint16_t>(b >> i));
    sums |= static_cast<uint32_t>(to_bfloat16(sum)) << i;
  }
  return sums;
}

#else

// Some bits of a word, and others beside them: one instruction, where the compiler makes two.
__device__ __forceinline__ uint32_t take_bits(uint32_t word, uint32_t which, uint32_t others) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word), "r"(which), "r"(others));
  return bits;
}

// a * 1 + b for two bfloat16 in a word, rounded once. In this form sm_80 has it too.
__device__ __forceinline__ uint32_t add_pairs(uint32_t a, uint32_t b) {
  constexpr uint32_t kOnes = 0x3f803f80;
  uint32_t sums;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(a), "r"(kOnes), "r"(b));
  return sums;
}

#endif

// The digits in bytes 0 and 2 of a word as bfloat16. The low seven bits of a digit are the fraction
// of 128 + these bits; from that 128 is taken, or 256 if the digit is negative. All of it is exact.
__device__ __forceinline__ uint32_t even_digits(uint32_t digits) {
  const uint32_t above = take_bits(digits, 0x007f007f, 0x43004300);  // 128 and more
  const uint32_t below = take_bits(digits, 0x00800080, 0xc300c300);  // -128 or -256
  return add_pairs(above, below);
}

// A lane's kWords words of a step's digits as multiply_add takes them: 4 of a weight, 2 of rows.
// The first half of the words has the first half of the channels.
template <typename Sum, int kWords>
struct StepOperand;

// One product takes them as they are.
template <int kWords>
struct StepOperand<int32_t, kWords> {
  static constexpr int kProducts = 1;
  uint32_t words[kProducts][kWords];

  __device__ __forceinline__ void take(const uint32_t* digits) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[0][i] = digits[i];
  }
};

// Two products take half of the channels each, in another order, which is the same for a weight and
// for rows.
template <int kWords>
struct StepOperand<float, kWords> {
  static constexpr int kProducts = 2;
  uint32_t words[kProducts][kWords];

  __device__ __forceinline__ void take(const uint32_t* digits) {
    constexpr int kHalfWords = kWords / 2;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      uint32_t(&half)[kWords] = words[i / kHalfWords];
      half[i % kHalfWords] = even_digits(digits[i]);
      half[i % kHalfWords + kHalfWords] = even_digits(digits[i] >> 8);
    }
  }
};

}  // namespace vllm_fork
