// Digits of queries and weights as tensor cores take them, and the sums of their products.
#pragma once

#include "cuda/primitives/matrix_instructions.cuh"
#include "portable/attention.h"
#include "portable/digits.h"

namespace vllm_fork {

// A left operand of products: of each lane the four words.
struct alignas(16) LeftOperand {
  uint32_t words[kWarp][4];

  // Word `word` of row `row`, counted from the operand's first column.
  __device__ __forceinline__ uint32_t& at(int row, int word) {
    return words[row % 8 * 4 + word % 4][row / 8 + word / 4 * 2];
  }
};

__device__ __forceinline__ int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

// Of the four lanes that have parts of the same rows.
template <typename T, typename Combine>
__device__ __forceinline__ T combine_quad(T value, const Combine& combine) {
  value = combine(value, __shfl_xor_sync(kAllLanes, value, 1));
  return combine(value, __shfl_xor_sync(kAllLanes, value, 2));
}

__device__ __forceinline__ uint32_t word_at(const uint8_t* address) {
  return *reinterpret_cast<const uint32_t*>(address);
}

__device__ __forceinline__ uint32_t byte_of(uint32_t word, int i) { return word >> 8 * i & 255; }

// The low bytes of four integers.
__device__ __forceinline__ uint32_t packed(const int32_t (&integers)[4]) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) word |= (static_cast<uint32_t>(integers[i]) & 255) << 8 * i;
  return word;
}

// The digits of four integers, in words.
struct DigitWords {
  uint32_t upper;
  uint32_t lower;

  __device__ __forceinline__ explicit DigitWords(const int32_t (&integers)[4]) {
    int32_t high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) high[i] = upper_digit(integers[i]);
    upper = packed(high);
    lower = packed(integers);
  }
};

// Sums of 16 rows and 8 columns: of products of both digits on the left with one on the right.
struct DigitSums {
  int32_t upper[4] = {};
  int32_t lower[4] = {};

  __device__ __forceinline__ int32_t joined_digits(int i) const { return upper[i] * 256 + lower[i]; }
};

// Sums with both digits on the right.
struct ProductSums {
  DigitSums upper;
  DigitSums lower;

  __device__ __forceinline__ float product(int i) const {
    return joined(upper.joined_digits(i), lower.joined_digits(i));
  }

  // Of a word from each of the two halves of the columns of the left operand.
  __device__ __forceinline__ void add(const LeftOperand& left_upper, const LeftOperand& left_lower,
                                      const uint32_t (&right_upper)[2],
                                      const uint32_t (&right_lower)[2]) {
    const auto lane = static_cast<int>(threadIdx.x) % kWarp;
    Fragments fragments;
#pragma unroll
    for (int i = 0; i < 4; ++i) fragments.a[i] = left_upper.words[lane][i];
    multiply(upper.upper, fragments, right_upper);
    multiply(lower.upper, fragments, right_lower);
#pragma unroll
    for (int i = 0; i < 4; ++i) fragments.a[i] = left_lower.words[lane][i];
    multiply(upper.lower, fragments, right_upper);
    multiply(lower.lower, fragments, right_lower);
  }

 private:
  static __device__ __forceinline__ void multiply(int32_t (&sums)[4], Fragments& fragments,
                                                  const uint32_t (&right)[2]) {
    fragments.b[0] = right[0];
    fragments.b[1] = right[1];
    multiply_add(sums, fragments);
  }
};

}  // namespace vllm_fork
