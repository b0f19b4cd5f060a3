// What operators of this library are made of, for those that call several: see the modules of
// vllm/fork_kernels. Each checks its arguments as the operator does.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace vllm_fork {

using torch::stable::Tensor;

// A contiguous tensor of the result's shape and dtype that is written to; a new one if there is none.
using Into = std::optional<Tensor>;

std::tuple<Tensor, Tensor> rotate_rounded_into(const Into& into_query, const Into& into_key,
                                               const Tensor& positions, const Tensor& query,
                                               const Tensor& key, const Tensor& cos_sin,
                                               int64_t head_size, bool is_neox);

// The normed rows, and what was normed: the sum with the residual, or nothing if there is none.
// `into_squares`: float32, of the shape of x.
std::tuple<Tensor, Tensor> rms_norm_rounded_into(const Into& into, const Into& into_total,
                                                 const Into& into_squares, const Tensor& x,
                                                 const std::optional<Tensor>& residual,
                                                 const Tensor& weight, double epsilon);

// `into_gate`: of the result's shape.
Tensor silu_and_mul_rounded_into(const Into& into, const Into& into_gate, const Tensor& x);

// Whether that has the same bits on one thread as on PyTorch's: its loops round an element by whether
// it is in what a thread has left over.
bool silu_needs_no_threads(int64_t rows, int64_t columns);

void append_to_pages(Tensor pages, Tensor key, Tensor value, Tensor slots);

Tensor row_products_into(const Into& into, const Tensor& x, const Tensor& weight,
                         const std::optional<Tensor>& bias, int64_t block);

Tensor ordered_products_into(const Into& into, const Tensor& x, const Tensor& weight,
                             const std::optional<Tensor>& bias, const Tensor& order);

// paged_sdpa with in_one.
Tensor token_sdpa_into(const Into& into, const Tensor& query, const Tensor& pages,
                       const Tensor& blocks, const Tensor& starts, const Tensor& stops,
                       int64_t key_size, std::optional<double> scale,
                       const std::optional<Tensor>& order);

void prompt_sdpa(Tensor query, Tensor pages, Tensor blocks, Tensor spans, int64_t key_size,
                 std::optional<double> scale, bool enable_gqa, bool in_one, Tensor result);

}  // namespace vllm_fork
