// The loop that the per-instruction-set translation units share.
//
// torch draws argmax(p / q) with q = float32(-log1p(-u)) for uniform numbers u (ATen,
// native/Distributions.cpp: multinomial_out). The logarithm is what costs, and few tokens need it:
// a filter drops those that cannot beat the best one so far.
//
// Everything here has internal linkage, so that each of them gets its own copy compiled with its
// own flags (see portable/macros.h for what goes wrong otherwise).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/logits/draw_row.h"
#include "portable/mt19937.h"

namespace vllm_fork {
namespace {

// The filter drops a token if
//
//     p * kLift < scale * h,    scale = best * kScale
//
// where best is the quotient to beat and h the high 21 bits of u, so that h * 2^-21 <= u. It never
// drops one that wins:
//
// kLift brings the smallest float above 0 to 2^-85, so that nothing here is subnormal: p * kLift is
// exact, and scale is at most best * 2^43 * (1 - 2^-20) * (1 + 2^-24). Rounding is monotonic and
// p * kLift is a float, so scale * h exceeds it before rounding too. Divided by kLift,
//
//     p < best * u * (1 - 2^-20) * (1 + 2^-24).
//
// -log1p(-u) >= u, computed with an error far below 2^-22 and then rounded to float, so
// q >= u * (1 - 2^-24) * (1 - 2^-22). Hence p / q < best, and its rounding is not above best: not
// enough, since of equal quotients the first one wins.
//
// Kept are: NaN, which compares as false; u == 0, for which q is 0, since h is 0 (0 < 0 and, for an
// infinite best, 0 < NaN are false); and p > 0 while best is 0, since kFirstScale * h < 2^-99.
constexpr float kLift = 0x1p64f;
constexpr float kScale = 0x1p43f * (1.0f - 0x1p-20f);
constexpr float kFirstScale = 0x1p-120f;  // drops p == 0 and nothing else

// The winner among the tokens considered so far, which come in ascending order.
struct Winner {
  int64_t token = 0;
  float best = 0.0f;  // NaN if 0 / 0 has won
  float scale = kFirstScale;
  bool is_possible = false;  // a probability is above 0
  bool is_valid = true;      // none is NaN or infinite

  // As torch.argmax compares: NaN beats every number, and nothing beats NaN.
  VLLM_FORK_INLINE void consider(int64_t candidate, float prob, const uint32_t* words) {
    is_possible |= prob > 0.0f;
    is_valid &= prob <= std::numeric_limits<float>::max();
    const float exponential = static_cast<float>(-std::log1p(-mt_uniform(words)));
    const float quotient = prob / exponential;
    if (quotient > best) {
      scale = quotient * kScale;
    } else if (!std::isnan(quotient) || std::isnan(best)) {
      return;
    }
    best = quotient;
    token = candidate;
  }
};

// The filter for one token.
VLLM_FORK_INLINE bool is_kept(const uint32_t* words, float prob, float scale) {
  const auto high = static_cast<int32_t>(mt_temper(words[0]) & kMtHighMask);
  return !(prob * kLift < scale * static_cast<float>(high));
}

// Which of `count` tokens the filter keeps, one bit for each.
VLLM_FORK_INLINE uint32_t kept_one_by_one(const uint32_t* words, const float* probs, float scale,
                                          int count) {
  uint32_t bits = 0;
  for (int i = 0; i < count; ++i) {
    bits |= static_cast<uint32_t>(is_kept(words + 2 * i, probs[i], scale)) << i;
  }
  return bits;
}

// `Lanes` looks at several tokens at once. It has
//   kCount                                   how many, at most 32, and
//   kept(words, probs, scale, count)         which of the next `count` tokens the filter keeps, one
//                                            bit for each; count is in 1..kCount.
template <typename Lanes>
VLLM_FORK_INLINE void consider_block(Winner& winner, const uint32_t* words, const float* probs,
                                     int64_t first_token, int64_t size) {
  for (int64_t i = 0; i < size; i += Lanes::kCount) {
    const int count = static_cast<int>(std::min<int64_t>(Lanes::kCount, size - i));
    uint32_t kept = Lanes::kept(words + 2 * i, probs + i, winner.scale, count);
    for (; kept != 0; kept &= kept - 1) {
      const int64_t k = i + __builtin_ctz(kept);
      winner.consider(first_token + k, probs[k], words + 2 * k);
    }
  }
}

// A block is what one refill of the state gives.
template <typename Lanes>
VLLM_FORK_INLINE int64_t draw(uint32_t* state, const float* probs, int64_t vocab_size) {
  Winner winner;
  for (int64_t token = 0; token < vocab_size;) {
    if (state[kMtPosition] == kMtNumbers) mt_refill(state);
    const int64_t position = state[kMtPosition];
    const int64_t size = std::min(kMtNumbers - position, vocab_size - token);
    consider_block<Lanes>(winner, state + 2 * position, probs + token, token, size);
    state[kMtPosition] = static_cast<uint32_t>(position + size);
    token += size;
  }
  return winner.is_possible && winner.is_valid ? winner.token : -1;
}

}  // namespace
}  // namespace vllm_fork
