// Launchers of the CUDA kernels on seen tokens: plain pointers and sizes, nothing of torch.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "portable/repetition_penalty.h"

namespace vllm_fork {

// seen [num_slots, num_words], contiguous.
struct SeenMask {
  int64_t num_slots;
  int64_t num_words;
};

// Sets bit token_ids[i] of row slots[i] of `seen`, for i in [0, count). An entry with no place in
// the mask, placeholders below zero included, is skipped. Token is int32_t or int64_t.
template <typename Token>
cudaError_t launch_mark_seen_tokens(int32_t* seen, SeenMask shape, const int32_t* slots,
                                    const Token* token_ids, int64_t count, cudaStream_t stream);

// Penalizes, in place, the logits whose bit is set: row i, of vocab_size floats at
// logits + i * row_stride, by row slots[i] of `seen` and by penalties[i]. A row whose slot is not
// in [0, num_slots) is left untouched. Needs num_words == num_mask_words(vocab_size).
cudaError_t launch_apply_repetition_penalty(float* logits, int64_t rows, int64_t vocab_size,
                                            int64_t row_stride, const int32_t* seen, SeenMask shape,
                                            const int32_t* slots, const double* penalties,
                                            DivisionRule rule, cudaStream_t stream);

}  // namespace vllm_fork
