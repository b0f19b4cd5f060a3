// Operators of this library that others call: see the modules of vllm/fork_ops.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace vllm_fork {

using torch::stable::Tensor;

std::tuple<Tensor, Tensor> rotate_rounded(Tensor positions, Tensor query, Tensor key,
                                          Tensor cos_sin, int64_t head_size, bool is_neox);

// The normed rows, and what was normed: the sum with the residual, or nothing if there is none.
std::tuple<Tensor, Tensor> rms_norm_rounded(Tensor x, std::optional<Tensor> residual,
                                            Tensor weight, double epsilon);

Tensor silu_and_mul_rounded(Tensor x);

void append_to_pages(Tensor pages, Tensor key, Tensor value, Tensor slots);

Tensor row_products(Tensor x, Tensor weight, std::optional<Tensor> bias, int64_t block);

Tensor ordered_products(Tensor x, Tensor weight, std::optional<Tensor> bias, Tensor order);

Tensor paged_sdpa(Tensor query, Tensor pages, Tensor blocks, Tensor starts, Tensor stops,
                  int64_t key_size, std::optional<double> scale, bool enable_gqa,
                  bool thread_per_request, bool in_one, std::optional<Tensor> order);

}  // namespace vllm_fork
