// The CPU implementation of decoder_layer_rows: other operators, one after the other.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstring>
#include <initializer_list>
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

// PyTorch's own product.
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(x), from(weight), from(bias)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// A single float32 row with each part of a weight, as the layers that it is of are multiplied.
Tensor by_parts(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                std::initializer_list<int64_t> sizes) {
  Tensor result = torch::stable::new_empty(x, {1, weight.size(0)});
  auto* target = static_cast<float*>(result.data_ptr());
  Tensor whole = weight;
  int64_t first = 0;
  for (const int64_t size : sizes) {
    std::optional<Tensor> own_bias;
    if (bias) {
      Tensor all = *bias;
      own_bias = torch::stable::narrow(all, 0, first, size);
    }
    const Tensor part = linear(x, torch::stable::narrow(whole, 0, first, size), own_bias);
    std::memcpy(target + first, part.data_ptr(), size * sizeof(float));
    first += size;
  }
  return result;
}

// Products of rows in 16 bits with a number for their order, and in float32 with steps, of which a
// single row, being one of sixteen lanes, takes longer than the library's own product.
Tensor products(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                int64_t order, const std::optional<Tensor>& steps,
                std::initializer_list<int64_t> sizes) {
  if (!steps) return row_products(x, weight, bias, order);
  if (x.size(0) == 1) return by_parts(x, weight, bias, sizes);
  return ordered_products(x, weight, bias, *steps);
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
    double post_epsilon, std::optional<Tensor> attention_order, Tensor positions, Tensor cos_sin,
    bool is_neox, Tensor pages, Tensor slots, Tensor blocks, Tensor starts, Tensor stops,
    double scale) {
  check_dim(kLayer, "pages", pages, 4);
  const int64_t rows = x.size(0), kv_heads = pages.size(1), size = pages.size(3) / 2;
  const int64_t kv_columns = kv_heads * size, query_columns = qkv.size(0) - 2 * kv_columns;
  check(query_columns > 0 && query_columns % (kv_heads * size) == 0, kLayer, ": qkv has ",
        qkv.size(0), " outputs, which are no queries, keys and values of ", kv_heads,
        " heads with ", size, " elements.");

  auto [normed, total] = rms_norm_rounded(x, residual, input_norm, input_epsilon);
  if (!residual) total = x;
  const Tensor projected = products(normed, qkv, qkv_bias, qkv_order, qkv_steps,
                                    {query_columns, kv_columns, kv_columns});
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
                                output_bias, output_order, output_steps, {output.size(0)});
  const auto [again, sum] = rms_norm_rounded(mixed, total, post_norm, post_epsilon);
  const Tensor gated =
      silu_and_mul_rounded(products(again, gate_up, gate_up_bias, gate_up_order, gate_up_steps,
                                    {gate_up.size(0) / 2, gate_up.size(0) / 2}));
  return {products(gated, down, down_bias, down_order, down_steps, {down.size(0)}), sum};
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("decoder_layer_rows", TORCH_BOX(&vllm_fork::decoder_layer_rows));
}
