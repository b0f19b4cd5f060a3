// The CPU implementation of portable_decoder_layers: other operators, one after the other.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/argument_checks.h"
#include "bindings/portable_operators_cpu.h"
#include "cpu/team/team.h"

namespace vllm_fork {
namespace {

constexpr const char* kLayers = "portable_decoder_layers";

using Tensors = std::vector<Tensor>;  // one of each layer, or none

std::optional<Tensor> of_layer(const Tensors& tensors, size_t layer) {
  if (tensors.empty()) return std::nullopt;
  return tensors[layer];
}

// A product of all layers.
struct Products {
  Tensors packed;
  Tensors exponents;
  Tensors biases;
  int64_t segments;

  void operator()(size_t layer, const Tensor& x, const Tensor& result) const {
    multiply_into(x, packed[layer], exponents[layer], of_layer(biases, layer), segments, result);
  }
};

// Norms of all layers.
struct Norms {
  Tensors weights;
  double epsilon;

  void operator()(size_t layer, const Tensor& x, const std::optional<Tensor>& residual,
                  const Tensor& result) const {
    norm_into(x, residual, weights[layer], std::nullopt, epsilon, 0.0, false, result);
  }
  void in_heads(size_t layer, const Tensor& x) const {
    if (!weights.empty()) rms_norm_heads(x, weights[layer], epsilon);
  }
};

struct Weights {
  Norms input_norms;
  Products qkv;
  Norms query_norms;
  Norms key_norms;
  Products output;
  Norms post_norms;
  Products gate_up;
  Products down;
  Tensors caches;

  size_t layers() const { return input_norms.weights.size(); }
};

// Where the tokens are, and how they see each other.
struct Sight {
  Tensor positions;
  Tensor table;
  bool is_interleaved;
  Tensor slots;
  Tensor pages;
  Tensor query_starts;
  Tensor lengths;
  double scale;
  int64_t window;
};

struct Sizes {
  int64_t rows;
  int64_t heads;
  int64_t key_heads;
  int64_t head;
  int64_t intermediate;

  int64_t queries() const { return heads * head; }
  int64_t keys() const { return key_heads * head; }
};

// Heads of some columns, [rows, heads, size], a view.
Tensor heads_in(const Tensor& x, int64_t first, int64_t heads, int64_t size) {
  Tensor whole = x;
  const Tensor columns = torch::stable::narrow(whole, 1, first, heads * size);
  return torch::stable::view(columns, {x.size(0), heads, size});
}

// What is between the operators; each layer writes over the last one's.
struct Rows {
  Tensor normed;
  Tensor projected;
  Tensor query;  // of what is projected, as are the next two
  Tensor key;
  Tensor value;
  Tensor attended;
  Tensor attended_heads;
  Tensor gate_up;
  Tensor gated;
  Tensor added;

  Rows(const Tensor& x, const Sizes& sizes)
      : normed(torch::stable::empty_like(x)),
        projected(rows_like(x, sizes.queries() + 2 * sizes.keys())),
        query(heads_in(projected, 0, sizes.heads, sizes.head)),
        key(heads_in(projected, sizes.queries(), sizes.key_heads, sizes.head)),
        value(heads_in(projected, sizes.queries() + sizes.keys(), sizes.key_heads, sizes.head)),
        attended(rows_like(x, sizes.queries())),
        attended_heads(heads_in(attended, 0, sizes.heads, sizes.head)),
        gate_up(rows_like(x, 2 * sizes.intermediate)),
        gated(rows_like(x, sizes.intermediate)),
        added(torch::stable::empty_like(x)) {}

  static Tensor rows_like(const Tensor& x, int64_t columns) {
    return torch::stable::new_empty(x, {x.size(0), columns});
  }
};

// Queries, keys and values are in the rows, and what is attended is afterwards.
void attend(size_t layer, const Weights& weights, const Sight& sight, const Rows& rows) {
  weights.query_norms.in_heads(layer, rows.query);
  weights.key_norms.in_heads(layer, rows.key);
  portable_rotate(rows.query, sight.positions, sight.table, sight.is_interleaved);
  portable_rotate(rows.key, sight.positions, sight.table, sight.is_interleaved);
  const Tensor cache = torch::stable::flatten(weights.caches[layer], 2);
  portable_append(rows.key, rows.value, cache, sight.slots);
  portable_attention(rows.query, cache, sight.pages, sight.query_starts, sight.lengths,
                     sight.scale, sight.window, /*soft_cap=*/0.0, /*slopes=*/std::nullopt,
                     /*sinks=*/std::nullopt, rows.attended_heads);
}

// The residual is in x, what is added to it in the rows.
void compute_layer(size_t layer, const Tensor& x, const Weights& weights, const Sight& sight,
                   const Rows& rows) {
  if (layer == 0) {
    weights.input_norms(layer, x, std::nullopt, rows.normed);
  } else {
    weights.input_norms(layer, rows.added, x, rows.normed);
  }
  weights.qkv(layer, rows.normed, rows.projected);
  attend(layer, weights, sight, rows);
  weights.output(layer, rows.attended, rows.added);
  weights.post_norms(layer, rows.added, x, rows.normed);
  weights.gate_up(layer, rows.normed, rows.gate_up);
  gate_into(rows.gate_up, Function::kSilu, rows.gated);
  weights.down(layer, rows.gated, rows.added);
}

void check_lists(const Weights& w) {
  const size_t layers = w.layers();
  check(layers > 0, kLayers, ": there must be a layer.");
  const auto check_list = [&](const char* name, const Tensors& list) {
    check(list.size() == layers, kLayers, ": ", name, " must be one of each of the ", layers,
          " layers, but are ", list.size(), ".");
  };
  const auto check_products = [&](const char* name, const Products& products) {
    check_list(name, products.packed);
    check_list(name, products.exponents);
    if (!products.biases.empty()) check_list(name, products.biases);
  };
  check_products("qkv", w.qkv);
  check_products("output", w.output);
  check_products("gate_up", w.gate_up);
  check_products("down", w.down);
  check_list("post_norms", w.post_norms.weights);
  check_list("caches", w.caches);
  if (!w.query_norms.weights.empty()) check_list("query_norms", w.query_norms.weights);
  if (!w.key_norms.weights.empty()) check_list("key_norms", w.key_norms.weights);
}

Tensor compute(const Tensor& x, const Weights& weights, const Sight& sight, int64_t heads,
               int64_t head_size, int64_t intermediate_size) {
  check_lists(weights);
  check_dim(kLayers, "x", x, 2);
  check(weights.caches[0].dim() > 2, kLayers, ": caches must have blocks, heads and bytes.");
  check(heads > 0 && head_size > 0 && intermediate_size > 0, kLayers, ": sizes must be above 0.");
  const Sizes sizes{x.size(0), heads, weights.caches[0].size(1), head_size, intermediate_size};
  const Rows rows(x, sizes);
  with_team([&] {
    for (size_t layer = 0; layer < weights.layers(); ++layer) {
      compute_layer(layer, x, weights, sight, rows);
    }
  });
  return rows.added;
}

Tensor portable_decoder_layers(
    Tensor x, Tensors input_norms, Tensors qkv, Tensors qkv_exponents, Tensors qkv_biases,
    Tensors query_norms, Tensors key_norms, Tensors output, Tensors output_exponents,
    Tensors output_biases, Tensors post_norms, Tensors gate_up, Tensors gate_up_exponents,
    Tensors gate_up_biases, Tensors down, Tensors down_exponents, Tensors down_biases,
    Tensors caches, std::vector<int64_t> segments, int64_t heads, int64_t head_size,
    int64_t intermediate_size, double input_epsilon, double post_epsilon, double head_epsilon,
    Tensor positions, Tensor table, bool is_interleaved, Tensor slots, Tensor pages,
    Tensor query_starts, Tensor lengths, double scale, int64_t window) {
  check(segments.size() == 4, kLayers, ": segments must be of 4 products, but are of ",
        segments.size(), ".");
  const Weights weights{{std::move(input_norms), input_epsilon},
                        {std::move(qkv), std::move(qkv_exponents), std::move(qkv_biases),
                         segments[0]},
                        {std::move(query_norms), head_epsilon},
                        {std::move(key_norms), head_epsilon},
                        {std::move(output), std::move(output_exponents), std::move(output_biases),
                         segments[1]},
                        {std::move(post_norms), post_epsilon},
                        {std::move(gate_up), std::move(gate_up_exponents),
                         std::move(gate_up_biases), segments[2]},
                        {std::move(down), std::move(down_exponents), std::move(down_biases),
                         segments[3]},
                        std::move(caches)};
  const Sight sight{positions, table,        is_interleaved, slots, pages,
                    query_starts, lengths, scale,          window};
  return compute(x, weights, sight, heads, head_size, intermediate_size);
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_decoder_layers", TORCH_BOX(&vllm_fork::portable_decoder_layers));
}
