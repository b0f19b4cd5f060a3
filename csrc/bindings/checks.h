// Checks of the ops' arguments: each failure is one sentence that names the op and the argument.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

namespace vllm_fork {

using torch::stable::Tensor;

// The arguments of mark_seen_tokens: see the op's schema.
void check_mark_seen_tokens(const Tensor& seen, const Tensor& slots, const Tensor& token_ids);

// The arguments of apply_repetition_penalty: see the op's schema.
void check_apply_repetition_penalty(const Tensor& logits, const Tensor& seen, const Tensor& slots,
                                    const Tensor& penalties);

// The arguments of draw_tokens: see the op's schema.
void check_draw_tokens(const Tensor& probs, const Tensor& states, const Tensor& slots,
                       const Tensor& offsets);

// The arguments of row_products: see the op's schema. `is_available`: on this CPU, with this block.
void check_row_products(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        int64_t block, bool is_available);

void check_transposed_row_products(const Tensor& x, const Tensor& weight, int64_t block,
                                   bool is_available);

// The arguments of paged_sdpa: see the op's schema.
void check_paged_sdpa(const Tensor& query, const Tensor& pages, const Tensor& blocks,
                      const Tensor& starts, const Tensor& stops, int64_t key_size);

// What in_one asks of them beyond that.
void check_token_attention(const Tensor& query, const Tensor& pages, int64_t key_size,
                           bool is_there);

// For the CPU, where values can be looked at before anything is written.
void check_slot(const char* op, int64_t index, int64_t slot, int64_t num_slots);
void check_token(int64_t index, int64_t token, int64_t num_words);
void check_penalty(int64_t index, double penalty);
void check_state_slot(int64_t index, int64_t slot, int64_t num_states);
void check_offset(int64_t index, int64_t offset, int64_t first_free);
void check_position(int64_t slot, int64_t position);

}  // namespace vllm_fork
