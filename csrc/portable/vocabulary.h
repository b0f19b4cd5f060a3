// The arithmetic of log-softmax and sampling for one logit.
//
// Specification: docs/numerics/operations.md, "Log-softmax" and "Sampling".
#pragma once

#include "portable/elementary.h"

namespace vllm_fork {

// Probabilities, the largest being 1, are added as integers of this unit.
constexpr double kProbabilityUnit = 0x1p-34;

// What a probability in 0..1 counts in a sum, as a float64 that is an integer: adding 1.5 * 2^52
// rounds to one. Sums of fewer than 2^19 of them are exact in float64, in any order.
VLLM_FORK_INLINE double probability_count(float probability) {
  return (static_cast<double>(probability) * 0x1p34 + 0x1.8p52) - 0x1.8p52;
}

// The same as an integer, for a GPU, most of which are slow in float64.
VLLM_FORK_INLINE int64_t probability_units(float probability) {
#if defined(__CUDA_ARCH__)
  return __float2ll_rn(probability * 0x1p34f);
#else
  return __builtin_llrintf(probability * 0x1p34f);
#endif
}

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
VLLM_FORK_INLINE void philox(uint32_t counter[4], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(counter[0]) * 0xd2511f53u;
    const uint64_t b = static_cast<uint64_t>(counter[2]) * 0xcd9e8d57u;
    counter[0] = static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key0;
    counter[1] = static_cast<uint32_t>(b);
    counter[2] = static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key1;
    counter[3] = static_cast<uint32_t>(a);
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
}

// The words that the tokens 4 * group..4 * group + 3 have at a position.
struct NoiseWords {
  uint32_t words[4];

  VLLM_FORK_INLINE NoiseWords(int64_t group, int64_t seed, int64_t position)
      : words{static_cast<uint32_t>(group), static_cast<uint32_t>(position),
              static_cast<uint32_t>(position >> 32), 0} {
    philox(words, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
};

// -ln(-ln(1 - u)) of u = (bits + 1/2) / 2^32: a number of the Gumbel distribution, always finite.
// Those that win have a small u, whose 24 bits float32 keeps; a u that rounds to 1 stands for the
// largest one.
VLLM_FORK_INLINE float gumbel_noise(uint32_t bits) {
  // The low half and the high half are exact, and their sum is rounded once.
  const float low = fused(static_cast<float>(bits & 0xffff), 0x1p-32f, 0x1p-33f);
  const float u = fused(static_cast<float>(bits >> 16), 0x1p-16f, low);
  const float rest = u == 1.0f ? 0x1p-33f : 1.0f - u;
  // ln(1 - u) where 1 - u is rounded: ln(rest) times what the rounding has changed.
  const float quotient = -(logarithm(rest) * (u / (1.0f - rest)));
  return -logarithm(rest == 1.0f ? u : quotient);
}

}  // namespace vllm_fork
