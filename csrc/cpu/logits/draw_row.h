// One row of probabilities, drawn from by one of several instruction sets.
#pragma once

#include <cstdint>

namespace vllm_fork {

// Draws a token as torch.multinomial(probs, 1) does on CPU, with the next vocab_size numbers of the
// generator, and leaves the state behind them. Returns -1 where that raises an error: a probability
// is NaN or infinite, or none is above 0.
//
//   state  [kMtStateWords], see portable/mt19937.h
//   probs  [vocab_size], none below 0
//
// All implementations give the same token.
using DrawRow = int64_t (*)(uint32_t* state, const float* probs, int64_t vocab_size);

// As mt_skip of portable/mt19937.h.
using SkipNumbers = void (*)(uint32_t* state, int64_t count);

// Each is compiled by its own translation unit with its own instruction set: call one only after
// asking the CPU (see isa.h).
int64_t draw_row_scalar(uint32_t*, const float*, int64_t);
void skip_numbers_scalar(uint32_t*, int64_t);
#if defined(VLLM_FORK_X86)
int64_t draw_row_avx2(uint32_t*, const float*, int64_t);
void skip_numbers_avx2(uint32_t*, int64_t);
int64_t draw_row_avx512(uint32_t*, const float*, int64_t);
void skip_numbers_avx512(uint32_t*, int64_t);
#endif

}  // namespace vllm_fork
