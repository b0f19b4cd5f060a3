// Operators of deterministic mode that portable_decoder_layers calls: see their schemas. Those that
// end in `into` write to a contiguous tensor, whose shape and dtype the caller has chosen to fit.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

#include "portable/functions.h"

namespace vllm_fork {

using torch::stable::Tensor;

void norm_into(const Tensor& x, const std::optional<Tensor>& residual,
               const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
               double epsilon, double weight_offset, bool is_centred, const Tensor& result);

// Each head of x [rows, heads, size], whose last dimension is contiguous, by itself and in place.
void rms_norm_heads(const Tensor& x, const Tensor& weight, double epsilon);

// As many outputs as the result has columns.
void multiply_into(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& exponents,
                   const std::optional<Tensor>& bias, int64_t segments, const Tensor& result);

// x is as check_gated wants it.
void gate_into(const Tensor& x, Function function, const Tensor& result);

void portable_rotate(Tensor x, Tensor positions, Tensor table, bool is_interleaved);

void portable_append(Tensor keys, Tensor values, Tensor cache, Tensor slots);

void portable_attention(Tensor query, Tensor cache, Tensor pages, Tensor query_starts,
                        Tensor lengths, double scale, int64_t window, double soft_cap,
                        std::optional<Tensor> slopes, std::optional<Tensor> sinks, Tensor result);

}  // namespace vllm_fork
