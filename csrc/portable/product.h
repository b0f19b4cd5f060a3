// The arithmetic of the portable linear-layer product, number by number.
//
// docs/numerics/products.md is the specification, and says why each step is as it is. Every
// implementation, on CPU or GPU, takes these functions or is tested against them bit by bit. None
// of them produces a subnormal, so flushing them changes nothing; multiplications are by powers of
// two and exact, so fusing one with an addition changes nothing either.
#pragma once

#include <cstdint>

#include "portable/digits.h"
#include "portable/macros.h"
#include "portable/number_types.h"

namespace vllm_fork {

// The exponents that a block may have, of a row of activations and of a row of a weight. They keep
// every sum of a product away from float's underflow and overflow.
inline constexpr int kLeastRowExponent = -80;
inline constexpr int kGreatestRowExponent = 50;
inline constexpr int kLeastWeightExponent = -54;
inline constexpr int kGreatestWeightExponent = 30;

// Exponents by which channels are equalised lie in -kMostEqualised..kMostEqualised.
inline constexpr int kMostEqualised = 16;

// To the nearest integer, ties to even, for |x| < 2^22.
VLLM_FORK_INLINE int32_t round_to_integer(float x) {
#if defined(__CUDA_ARCH__)
  const float shifted = __fadd_rn(x, kRounder);
#else
  const float shifted = x + kRounder;
#endif
  return static_cast<int32_t>(bits_of(shifted) - bits_of(kRounder));
}

// Halfway between two high digits the low one would always be -128, and the products of low digits
// that are dropped would have a mean other than zero. Half of these become 127.
VLLM_FORK_INLINE int32_t break_tie(int32_t v) {
  return v - static_cast<int32_t>((static_cast<uint32_t>(v) & 511) == 128);
}

// Adds a block's rounded product, times the two powers of two, to a sum.
VLLM_FORK_INLINE float add_term(float sum, float product, float weight_scale, float row_scale) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(sum, __fmul_rn(__fmul_rn(product, weight_scale), row_scale));
#else
  return sum + (product * weight_scale) * row_scale;
#endif
}

// What a block adds to a sum: both digits' products, times the two powers of two.
//
//   high          sum of high * high
//   mixed         sum of high * low + low * high
//   weight_scale  2^(8 + the weight's exponent)
//   row_scale     2^(the row's exponent); NaN in a row that is not finite
VLLM_FORK_INLINE float add_block_sum(float sum, int32_t high, int32_t mixed, float weight_scale,
                                     float row_scale) {
  const uint32_t wrapped = 256 * static_cast<uint32_t>(high) + static_cast<uint32_t>(mixed);
  const auto both = static_cast<int32_t>(wrapped);  // in range by the specification's bound
#if defined(__CUDA_ARCH__)
  return add_term(sum, __int2float_rn(both), weight_scale, row_scale);
#else
  return add_term(sum, static_cast<float>(both), weight_scale, row_scale);
#endif
}

// The same with one scale, the product of both; fused, because the term is exact.
VLLM_FORK_INLINE float add_block_sum(float sum, int32_t high, int32_t mixed, float scale) {
  const uint32_t wrapped = 256 * static_cast<uint32_t>(high) + static_cast<uint32_t>(mixed);
  const auto both = static_cast<int32_t>(wrapped);
#if defined(__CUDA_ARCH__)
  return fused(__int2float_rn(both), scale, sum);
#else
  return fused(static_cast<float>(both), scale, sum);
#endif
}

// The same of sums that are float32, whatever the sign of their zeros: no sum is -0. 256 * high is
// exact, so that the product is rounded once, fused or not.
VLLM_FORK_INLINE float add_block_sum(float sum, float high, float mixed, float weight_scale,
                                     float row_scale) {
  return add_term(sum, 256.0f * high + mixed, weight_scale, row_scale);
}

// A number's share in the statistic of its channel: about the square of |x| * 2^20, from the exponent
// alone. It is 0 below 2^-20 and does not grow from 4 on, so that 2^18 of them fit in 63 bits.
VLLM_FORK_INLINE int64_t channel_statistic(float x) {
  constexpr int kLeast = 127 - 20;
  constexpr int kGreatest = 127 + 2;
  const int exponent = static_cast<int>((bits_of(x) & ~kSignBit) >> 23);
  const int capped = exponent > kGreatest ? kGreatest : exponent;
  return capped < kLeast ? 0 : int64_t{1} << (2 * (capped - kLeast));
}

// The sum of kCount sums, which lie `stride` apart, by a tree of halves.
template <int kCount>
VLLM_FORK_INLINE float sum_of_halves(const float* sums, int64_t stride) {
  if constexpr (kCount == 1) {
    return *sums;
  } else {
    constexpr int kHalf = kCount / 2;
    return sum_of_halves<kHalf>(sums, stride) + sum_of_halves<kHalf>(sums + kHalf * stride, stride);
  }
}

// Bias elements below 2^-103 count as zero: then no sum with one is subnormal.
VLLM_FORK_INLINE float normal_bias(float bias) {
  constexpr uint32_t kLeast = (127 - 103) << 23;
  return (bits_of(bias) & ~kSignBit) < kLeast ? 0.0f : bias;
}

}  // namespace vllm_fork
