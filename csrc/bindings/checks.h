// Checks of the ops' arguments: each failure is one sentence that names the op and the argument.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

#include "../portable/product_layout.h"

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

// The arguments of row_products: see the op's schema.
void check_row_products(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        bool is_available);

// The arguments of paged_sdpa: see the op's schema.
void check_paged_sdpa(const Tensor& query, const Tensor& pages, const Tensor& blocks,
                      const Tensor& starts, const Tensor& stops, int64_t key_size);

// The arguments of the portable product's ops: see their schemas.
void check_channel_statistics(const Tensor& weight);
void check_equalising_exponents(const Tensor& statistics);
void check_pack_weight(const Tensor& weight, const std::optional<Tensor>& exponents,
                       int64_t segments);
void check_unpack_weight(const Tensor& packed, const std::optional<Tensor>& exponents,
                         const ProductShape& shape);
void check_portable_product(const Tensor& x, const Tensor& packed,
                            const std::optional<Tensor>& exponents,
                            const std::optional<Tensor>& bias, const ProductShape& shape,
                            torch::headeronly::ScalarType dtype);
void check_sum_partials(const Tensor& partials, const std::optional<Tensor>& bias,
                        torch::headeronly::ScalarType dtype);

// For the CPU, where values can be looked at before anything is written.
void check_slot(const char* op, int64_t index, int64_t slot, int64_t num_slots);
void check_token(int64_t index, int64_t token, int64_t num_words);
void check_penalty(int64_t index, float penalty);
void check_state_slot(int64_t index, int64_t slot, int64_t num_states);
void check_offset(int64_t index, int64_t offset, int64_t first_free);
void check_position(int64_t slot, int64_t position);
void check_packed_output(int64_t output);

}  // namespace vllm_fork
