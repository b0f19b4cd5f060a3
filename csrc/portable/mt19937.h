// The generator MT19937 (M. Matsumoto, T. Nishimura: "Mersenne Twister", ACM TOMACS 8(1), 1998), as
// torch runs it on CPU (ATen, core/MT19937RNGEngine.h).
//
// torch consumes two words for a uniform number of double precision, so here the unit is the number
// and not the word. A state is kMtStateWords words: the kMtWords of the recurrence, and how many
// numbers of them are used up: 1 to kMtNumbers, since the next words are computed when the first of
// them is needed.
#pragma once

#include <cstdint>

#include "portable/macros.h"

namespace vllm_fork {

inline constexpr int64_t kMtWords = 624;
inline constexpr int64_t kMtStateWords = kMtWords + 1;
inline constexpr int64_t kMtNumbers = kMtWords / 2;
inline constexpr int64_t kMtPosition = kMtWords;  // the index of the position in a state

// The recurrence: what two neighbouring words add to the word 397 places behind them.
VLLM_FORK_INLINE uint32_t mt_twist(uint32_t word, uint32_t next) {
  const uint32_t mixed = (word & 0x80000000u) | (next & 0x7fffffffu);
  return (mixed >> 1) ^ ((0u - (next & 1u)) & 0x9908b0dfu);
}

// Replaces the words by those that follow. No iteration of a loop reads what one of the 226 before
// it wrote, so a compiler can take several at once.
VLLM_FORK_INLINE void mt_refill(uint32_t* state) {
  constexpr int64_t kShift = 397;
  constexpr int64_t kRest = kMtWords - kShift;
  for (int64_t i = 0; i < kRest; ++i) {
    state[i] = state[i + kShift] ^ mt_twist(state[i], state[i + 1]);
  }
  for (int64_t i = kRest; i < kMtWords - 1; ++i) {
    state[i] = state[i - kRest] ^ mt_twist(state[i], state[i + 1]);
  }
  state[kMtWords - 1] = state[kShift - 1] ^ mt_twist(state[kMtWords - 1], state[0]);
  state[kMtPosition] = 0;
}

// What the generator gives out for a word of its state, or for each word of a vector.
template <typename Words>
VLLM_FORK_INLINE Words mt_temper(Words word) {
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680u;
  word ^= (word << 15) & 0xefc60000u;
  return word ^ (word >> 18);
}

// Leaves the state as it is after `count` numbers.
VLLM_FORK_INLINE void mt_skip(uint32_t* state, int64_t count) {
  int64_t position = state[kMtPosition] + count;
  for (; position > kMtNumbers; position -= kMtNumbers) mt_refill(state);
  state[kMtPosition] = static_cast<uint32_t>(position);
}

// The low 53 bits of a number's two words make it a double, in [0, 1) (ATen,
// core/TransformationHelper.h: uniform_real).
inline constexpr uint32_t kMtHighMask = (1u << 21) - 1;

VLLM_FORK_INLINE double mt_uniform(const uint32_t* words) {
  const uint64_t high = mt_temper(words[0]) & kMtHighMask;
  return static_cast<double>((high << 32) | mt_temper(words[1])) * 0x1p-53;
}

}  // namespace vllm_fork
