// Scores of 16 tokens and two rows in a lane, and the weights that they become: for a block of tokens
// that all rows of a warp see and whose numbers are in a common range, or for any block.
//
// Both give the same bits. What the common range saves: limits of scores, unless a soft cap or a
// slope makes these, masks, and exponents of which every one has to be looked at.
#pragma once

#include "cuda/attention/hopper/prompt_memory.cuh"
#include "cuda/attention/hopper/prompt_products.cuh"
#include "cuda/primitives/words.cuh"

namespace vllm_fork {

// An exponent plus this is the bits of exponent + kRounder: scores come with it, and keep it.
constexpr int32_t kExponentBias = 0x4b400000;
static_assert(kRounder == 0x1.8p23f);

// What two rows of a lane know of a block, all lanes of a row alike. The exponents are biased.
struct BlockExponents {
  int32_t weight[2];
  int32_t value[2];
};

// Left operands for the products with values: [digit][half of the tokens]. Digits of weights are
// bytes: the lower one has no sign.
struct WeightWords {
  uint32_t words[2][2][4];
};

// A lane's weights before they have a common unit: fraction * 2^(exponent - kExponentBias).
struct LaneWeights {
  float fractions[2][kLaneTokens];
  int32_t exponents[2][kLaneTokens];
};

// Of a block, the token of a lane's number t.
__device__ __forceinline__ int token_of(int place, int t) {
  return t / 4 * kTileTokens + 4 * place + t % 4;
}

// And where its products are: row r of product j.
__device__ __forceinline__ float product_of(const TileProducts& products, int r, int t) {
  return products[t / 4 * 2 + t % 4 / 2][2 * r + t % 2];
}

// --- any block ---------------------------------------------------------------------------------

// Scores of a block from `first` on, of rows that may not see all of it.
__device__ __forceinline__ void weigh_any(const TileProducts& products, const BlockScales& scales,
                                          int32_t first, int place, float cap,
                                          QueryFacts (&facts)[2], LaneWeights& weights) {
#pragma unroll
  for (int t = 0; t < kLaneTokens; ++t) {
    const int own = token_of(place, t);
    const int32_t token = first + own;
    const float key_unit = scales.key_units[own];
    const bool is_there = key_unit == key_unit;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Weight weight(score(product_of(products, r, t), key_unit, facts[r].factor, cap,
                                facts[r].slope, static_cast<float>(token - facts[r].seen.last)));
      const bool is_seen = token >= facts[r].seen.first && token <= facts[r].seen.last;
      weights.fractions[r][t] = weight.fraction;
      weights.exponents[r][t] = kExponentBias + (is_seen ? weight.exponent : kUnseen);
      if (is_seen && !is_there) facts[r].is_valid = false;
    }
  }
}

// One row's part of the sum of weights, and the integers of its lane's weights.
__device__ __forceinline__ int32_t round_any(const LaneWeights& weights, const BlockScales& scales,
                                             int place, const BlockExponents& largest, int r,
                                             uint32_t (&integers)[kLaneTokens]) {
  int32_t sum = 0;
#pragma unroll
  for (int t = 0; t < kLaneTokens; ++t) {
    const int32_t exponent = weights.exponents[r][t];
    const bool is_seen = exponent != kExponentBias + kUnseen;
    const float fraction = weights.fractions[r][t];
    const int32_t in_sum = weight_in_sum(fraction, exponent - largest.weight[r]);
    const int32_t value = exponent + scales.values[token_of(place, t)] - largest.value[r];
    sum += is_seen ? in_sum : 0;
    integers[t] = is_seen ? static_cast<uint32_t>(weight_of_value(fraction, value)) : 0;
  }
  return sum;
}

// --- a block in the common range -----------------------------------------------------------------

// Where no product can make a score as large as its limit, and weights of all values can be
// multiplied with their units without leaving the range of normal numbers.
constexpr float kLargestProduct = 0x1p37f;  // 128 * (127 * 256)^2 is less
constexpr float kScoreLimit = 0x1p20f;
constexpr int32_t kCommonValueRange = 20;

__device__ __forceinline__ bool are_common(const BlockScales& scales, float largest_factor) {
  return scales.largest_key_unit * largest_factor < kScoreLimit / kLargestProduct &&
         scales.largest_value - scales.smallest_value <= kCommonValueRange;
}

// kIsPlain: without a soft cap and a slope.
template <bool kIsPlain>
__device__ __forceinline__ float common_score(float product, float key_unit,
                                              const QueryFacts& facts, float cap, int32_t token) {
  if constexpr (kIsPlain) return product * key_unit * facts.factor;
  return score(product, key_unit, facts.factor, cap, facts.slope,
               static_cast<float>(token - facts.seen.last));
}

template <bool kIsPlain>
__device__ __forceinline__ void weigh_common(const TileProducts& products,
                                             const BlockScales& scales, int32_t first, int place,
                                             float cap, const QueryFacts (&facts)[2],
                                             LaneWeights& weights) {
#pragma unroll
  for (int t = 0; t < kLaneTokens; ++t) {
    const int own = token_of(place, t);
    const float key_unit = scales.key_units[own];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = common_score<kIsPlain>(product_of(products, r, t), key_unit, facts[r], cap,
                                             first + own);
      const float shifted = x + kRounder;
      weights.fractions[r][t] = exponential2_of_fraction(x - (shifted - kRounder));
      weights.exponents[r][t] = static_cast<int32_t>(bits_of(shifted));
    }
  }
}

// As round_any. A weight that is below 2^-60 of the largest is 0 in both sums. fma with a power of two
// rounds as the product and the sum do, since the product is exact or rounds to 0.
__device__ __forceinline__ int32_t round_common(const LaneWeights& weights,
                                                const BlockScales& scales, int place,
                                                const BlockExponents& largest, int r,
                                                uint32_t (&integers)[kLaneTokens]) {
  constexpr int32_t kVanishing = -60;
  const float value_unit =
      power_of_two(scales.largest_value - (largest.value[r] - largest.weight[r]) + 14);
  uint32_t sum = 0;
#pragma unroll
  for (int t = 0; t < kLaneTokens; ++t) {
    const int32_t exponent = larger_sum(weights.exponents[r][t], -largest.weight[r], kVanishing);
    const float weight = float_of(bits_of(weights.fractions[r][t]) +
                                  (static_cast<uint32_t>(exponent) << 23));
    const float of_value = weight * scales.value_units[token_of(place, t)];
    sum += bits_of(fused(weight, 0x1p21f, kRounder));
    integers[t] = bits_of(fused(of_value, value_unit, kRounder));
  }
  return static_cast<int32_t>(sum - kLaneTokens * static_cast<uint32_t>(kExponentBias));
}

// --- both ----------------------------------------------------------------------------------------

__device__ __forceinline__ BlockExponents largest_exponents(const LaneWeights& weights,
                                                            const BlockScales& scales, int place) {
  BlockExponents largest;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    int32_t weight = kExponentBias + kUnseen;
    int32_t value = kExponentBias + kUnseen;
#pragma unroll
    for (int t = 0; t < kLaneTokens; ++t) {
      const int32_t exponent = weights.exponents[r][t];
      weight = larger(weight, exponent);
      value = larger_sum(exponent, scales.values[token_of(place, t)], value);
    }
    largest.weight[r] = combine_quad(weight, larger);
    largest.value[r] = combine_quad(value, larger);
  }
  return largest;
}

// The digits of a row's 16-bit weights where products take them: bytes 0 and 1 of each integer.
__device__ __forceinline__ void pack_weights(const uint32_t (&integers)[kLaneTokens], int r,
                                             WeightWords& packed) {
#pragma unroll
  for (int tile = 0; tile < kBlockTiles; ++tile) {
    const uint32_t low = bytes_of(integers[4 * tile], integers[4 * tile + 1], 0x5410);
    const uint32_t high = bytes_of(integers[4 * tile + 2], integers[4 * tile + 3], 0x5410);
    packed.words[0][tile / 2][r + tile % 2 * 2] = bytes_of(low, high, 0x7531);
    packed.words[1][tile / 2][r + tile % 2 * 2] = bytes_of(low, high, 0x6420);
  }
}

}  // namespace vllm_fork
