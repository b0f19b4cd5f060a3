// One row of logits, penalized by one of several instruction sets.
#pragma once

#include <cstdint>

#include "portable/repetition_penalty.h"

namespace vllm_fork {

// Penalizes, in place, the logits of one row whose bit in `seen` is set.
//
//   logits  [vocab_size]
//   seen    [num_mask_words(vocab_size)]
//
// All implementations give the same bits.
using PenalizeRow = void (*)(float* logits, const int32_t* seen, int64_t vocab_size, double penalty,
                             DivisionRule rule);

// Each is compiled by its own translation unit with its own instruction set: call one only after
// asking the CPU (see isa.h).
void penalize_row_scalar(float*, const int32_t*, int64_t, double, DivisionRule);
#if defined(VLLM_FORK_X86)
void penalize_row_avx2(float*, const int32_t*, int64_t, double, DivisionRule);
void penalize_row_avx512(float*, const int32_t*, int64_t, double, DivisionRule);
#endif

}  // namespace vllm_fork
