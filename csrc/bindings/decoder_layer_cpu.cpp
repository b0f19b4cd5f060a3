// The CPU implementation of decoder_layer_rows: other operators, one after the other.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

#include "bindings/argument_checks.h"
#include "bindings/cpu_operators.h"

namespace vllm_fork {
namespace {

constexpr const char* kLayer = "decoder_layer_rows";

// Columns of rows, a view.
Tensor columns(const Tensor& x, int64_t first, int64_t count) {
  Tensor whole = x;
  return torch::stable::narrow(whole, 1, first, count);
}

// Each head of some columns normed by itself: [rows, heads * size].
Tensor heads_normed(const Tensor& x, const Tensor& weight, double epsilon) {
  const int64_t rows = x.size(0), count = x.size(1), size = weight.size(0);
  check(size > 0 && count % size == 0, kLayer, ": norms of ", size, " elements for heads in ",
        count, " columns.");
  Tensor own = torch::stable::new_empty(x, {rows, count});
  torch::stable::copy_(own, x);
  const auto [normed, _] = rms_norm_rounded(torch::stable::view(own, {rows * count / size, size}),
                                            std::nullopt, weight, epsilon);
  return torch::stable::view(normed, {rows, count});
}

// [rows, heads * size] as [rows, heads, size], a view.
Tensor by_head(const Tensor& x, int64_t size) {
  return torch::stable::view(x, {x.size(0), x.size(1) / size, size});
}

// Products of rows in 16 bits with a number for their order, and in float32 with steps.
Tensor products(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                int64_t order, const std::optional<Tensor>& steps) {
  return steps ? ordered_products(x, weight, bias, *steps) : row_products(x, weight, bias, order);
}

std::tuple<Tensor, Tensor> decoder_layer_rows(
    Tensor x, std::optional<Tensor> residual, Tensor input_norm, Tensor qkv,
    std::optional<Tensor> qkv_bias, int64_t qkv_order, std::optional<Tensor> qkv_steps,
    std::optional<Tensor> query_norm, std::optional<Tensor> key_norm, double head_epsilon,
    Tensor output, std::optional<Tensor> output_bias, int64_t output_order,
    std::optional<Tensor> output_steps, Tensor post_norm, Tensor gate_up,
    std::optional<Tensor> gate_up_bias, int64_t gate_up_order,
    std::optional<Tensor> gate_up_steps, Tensor down, std::optional<Tensor> down_bias,
    int64_t down_order, std::optional<Tensor> down_steps, double input_epsilon,
    double post_epsilon, std::optional<Tensor> attention_order, Tensor positions, Tensor cos_sin, bool is_neox, Tensor pages, Tensor slots, Tensor blocks,
    Tensor starts, Tensor stops, double scale) {
  check_dim(kLayer, "pages", pages, 4);
  const int64_t rows = x.size(0), kv_heads = pages.size(1), size = pages.size(3) / 2;
  const int64_t kv_columns = kv_heads * size, query_columns = qkv.size(0) - 2 * kv_columns;
  check(query_columns > 0 && query_columns % (kv_heads * size) == 0, kLayer, ": qkv has ",
        qkv.size(0), " outputs, which are no queries, keys and values of ", kv_heads,
        " heads with ", size, " elements.");

  auto [normed, total] = rms_norm_rounded(x, residual, input_norm, input_epsilon);
  if (!residual) total = x;
  const Tensor projected = products(normed, qkv, qkv_bias, qkv_order, qkv_steps);
  Tensor before_query = columns(projected, 0, query_columns);
  Tensor before_key = columns(projected, query_columns, kv_columns);
  if (query_norm) before_query = heads_normed(before_query, *query_norm, head_epsilon);
  if (key_norm) before_key = heads_normed(before_key, *key_norm, head_epsilon);
  const auto [query, key] =
      rotate_rounded(positions, before_query, before_key, cos_sin, size, is_neox);
  const Tensor value = columns(projected, query_columns + kv_columns, kv_columns);
  append_to_pages(pages, by_head(key, size), by_head(value, size), slots);
  const Tensor queries = torch::stable::unsqueeze(by_head(query, size), 2);
  const Tensor attended =
      paged_sdpa(queries, pages, blocks, starts, stops, size, scale, query_columns != kv_columns,
                 /*thread_per_request=*/false, /*in_one=*/true, attention_order);
  const Tensor mixed = products(torch::stable::view(attended, {rows, query_columns}), output,
                                output_bias, output_order, output_steps);
  const auto [again, sum] = rms_norm_rounded(mixed, total, post_norm, post_epsilon);
  const Tensor gated =
      silu_and_mul_rounded(products(again, gate_up, gate_up_bias, gate_up_order, gate_up_steps));
  return {products(gated, down, down_bias, down_order, down_steps), sum};
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("decoder_layer_rows", TORCH_BOX(&vllm_fork::decoder_layer_rows));
}
