// The arithmetic of attention: layout of the cache, weights of tokens, merging of blocks.
//
// Specification: docs/numerics/attention.md.
#pragma once

#include "portable/digits.h"
#include "portable/elementary.h"

namespace vllm_fork {

constexpr int64_t kLargestHead = 256;    // elements: sums of products fit 32 bits
constexpr int kTileTokens = 16;          // the unit of the cache's layout
constexpr int kBlockTokens = 64;         // share one exponent, at multiples of 64
constexpr int kSuperblockTokens = 1024;  // merged by themselves, at multiples of 1024

// A block of the cache and one head is tiles of 16 tokens, and behind all of them their scales.
// A tile's digits are, in bytes,
//
//   upper digits of keys [size / 4][16 tokens][4], lower digits of keys,
//   upper digits of values [4][size][4 tokens], lower digits of values,
//
// and its scales those of keys [16] and of values [16]. Four neighbours are what one integer
// instruction multiplies and adds.
struct TileLayout {
  int64_t size;  // of a head, a multiple of 16

  VLLM_FORK_INLINE int64_t digits() const { return kTileTokens * size; }
  VLLM_FORK_INLINE int64_t digit_bytes() const { return 4 * digits(); }
  VLLM_FORK_INLINE int64_t scale_bytes() const { return 2 * kTileTokens; }
  VLLM_FORK_INLINE int64_t bytes() const { return digit_bytes() + scale_bytes(); }
  VLLM_FORK_INLINE int64_t values() const { return 2 * digits(); }
  VLLM_FORK_INLINE int64_t key_place(int64_t token, int64_t d) const {
    return d / 4 * (4 * kTileTokens) + token * 4 + d % 4;
  }
  VLLM_FORK_INLINE int64_t value_place(int64_t token, int64_t d) const {
    return values() + token / 4 * (4 * size) + d * 4 + token % 4;
  }
};

// How scores are made, the same for all tokens and queries of a head.
struct ScoreRule {
  float factor;    // before the cap if there is one, else to powers of two
  float cap;       // 0 if there is none, else the cap in powers of two
  float slope;     // ALiBi's, in powers of two; 0 if there is none
  int64_t window;  // the tokens that a query sees, itself included; 0 if all before it
};

// fl(scale * log2(e)), or with a soft cap fl(scale / cap) and fl(cap * log2(e)).
VLLM_FORK_INLINE ScoreRule score_rule(float scale, float soft_cap, float slope, int64_t window) {
  const bool has_cap = soft_cap > 0.0f;
  return {has_cap ? scale / soft_cap : scale * kLog2E, has_cap ? soft_cap * kLog2E : 0.0f,
          slope * kLog2E, window};
}

// Of a row of 16-bit integers `c` and rows of digits `u` and `l`: the sum of c * (256 * u + l) from
// the exact sums of c * u and c * l.
VLLM_FORK_INLINE float joined(int32_t upper, int32_t lower) {
  return fused(static_cast<float>(upper), 256.0f, static_cast<float>(lower));
}

// Far beyond any that matters, and such that it can be rounded to an integer.
VLLM_FORK_INLINE float bounded_score(float score) {
  const float x = score < -0x1p20f ? -0x1p20f : score;
  return x > 0x1p20f ? 0x1p20f : x;
}

// The exponent, base 2, of a token's weight before normalisation.
//
//   product   of the query's and the key's integers
//   key_unit  of the key's integers
//   factor    of the rule, times the unit of the query's integers
//   distance  token's position minus query's, at most 0
VLLM_FORK_INLINE float score(float product, float key_unit, float factor, float cap, float slope,
                             float distance) {
  float x = product * key_unit * factor;
  if (cap != 0.0f) x = hyperbolic_tangent(x) * cap;
  if (slope != 0.0f) x = fused(slope, distance, x);
  return bounded_score(x);
}

// 2^score as fraction * 2^exponent, the fraction between the square roots of 1/2 and 2.
struct Weight {
  float fraction;
  int32_t exponent;

  VLLM_FORK_INLINE explicit Weight(float score) {
    const float shifted = score + kRounder;
    fraction = exponential2_of_fraction(score - (shifted - kRounder));
    exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(kRounder));
  }
};

constexpr int32_t kUnseen = -(1 << 28);  // the exponent of a token that is not seen

// A weight in the sum of weights, in units of 2^-21, and as a coefficient of the values, in units
// of 2^-14; the exponent is relative to the largest one of the block.
VLLM_FORK_INLINE int32_t weight_in_sum(float fraction, int32_t exponent) {
  return static_cast<int32_t>(round_to_even(fraction * power_of_two(exponent + 21)));
}
VLLM_FORK_INLINE int32_t weight_of_value(float fraction, int32_t exponent) {
  return static_cast<int32_t>(round_to_even(fraction * power_of_two(exponent + 14)));
}

// The exponents of a block's units, relative to what a query has gathered: of its sum of weights,
// and of its weighted values, where the scale of a value is counted from 127.
VLLM_FORK_INLINE int32_t unit_of_sum(int32_t block, int32_t gathered) {
  return block - 21 - gathered;
}
VLLM_FORK_INLINE int32_t unit_of_values(int32_t block, int32_t gathered) {
  return block - 14 - 127 - gathered;
}

// What a query has gathered of some tokens: the sum of weights, and beside it the weighted sum of
// values, both in units of 2^exponent.
struct Gathered {
  int32_t exponent = kUnseen;
  float sum = 0.0f;
};

// How two parts of what is gathered are brought to the same unit.
struct Rescaling {
  int32_t exponent;
  float kept;   // multiplies what was there
  float added;  // multiplies what comes

  VLLM_FORK_INLINE Rescaling(int32_t there, int32_t coming)
      : exponent(there > coming ? there : coming),
        kept(power_of_two(there - exponent)),
        added(power_of_two(coming - exponent)) {}
};

}  // namespace vllm_fork
