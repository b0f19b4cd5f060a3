// The CPU implementation of portable_decoder_layers: other operators, one after the other.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/argument_checks.h"
#include "bindings/decoder/layer_weights.h"
#include "bindings/portable_operators_cpu.h"
#include "cpu/team/team.h"

namespace vllm_fork {
namespace {

constexpr const char* kLayers = "portable_decoder_layers";

// The layers, and how each multiplies.
struct Layers {
  std::vector<LayerWeights> weights;
  std::vector<int64_t> segments;  // of qkv, output, gate_up and down
  Epsilons epsilons;
  Tensors caches;
};

void norm(const Tensor& x, const std::optional<Tensor>& residual, const Tensor& weight,
          double epsilon, const Tensor& result) {
  norm_into(x, residual, weight, std::nullopt, epsilon, 0.0, false, result);
}

void norm_heads(const Tensor& x, const std::optional<Tensor>& weight, double epsilon) {
  if (weight) rms_norm_heads(x, *weight, epsilon);
}

void multiply(const Tensor& x, const ProductWeights& own, int64_t segments, const Tensor& result) {
  multiply_into(x, own.weight, own.how, own.bias, segments, result);
}

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
void attend(size_t layer, const Layers& layers, const Sight& sight, const Rows& rows) {
  const LayerWeights& own = layers.weights[layer];
  norm_heads(rows.query, own.query_norm, layers.epsilons.heads);
  norm_heads(rows.key, own.key_norm, layers.epsilons.heads);
  portable_rotate(rows.query, sight.positions, sight.table, sight.is_interleaved);
  portable_rotate(rows.key, sight.positions, sight.table, sight.is_interleaved);
  const Tensor cache = torch::stable::flatten(layers.caches[layer], 2);
  portable_append(rows.key, rows.value, cache, sight.slots);
  portable_attention(rows.query, cache, sight.pages, sight.query_starts, sight.lengths,
                     sight.scale, sight.window, /*soft_cap=*/0.0, /*slopes=*/std::nullopt,
                     /*sinks=*/std::nullopt, rows.attended_heads);
}

// The residual is in x, what is added to it in the rows.
void compute_layer(size_t layer, const Tensor& x, const Layers& layers, const Sight& sight,
                   const Rows& rows) {
  const LayerWeights& own = layers.weights[layer];
  const auto& segments = layers.segments;
  if (layer == 0) {
    norm(x, std::nullopt, own.input_norm, layers.epsilons.input, rows.normed);
  } else {
    norm(rows.added, x, own.input_norm, layers.epsilons.input, rows.normed);
  }
  multiply(rows.normed, own.qkv, segments[0], rows.projected);
  attend(layer, layers, sight, rows);
  multiply(rows.attended, own.output, segments[1], rows.added);
  norm(rows.added, x, own.post_norm, layers.epsilons.post, rows.normed);
  multiply(rows.normed, own.gate_up, segments[2], rows.gate_up);
  gate_into(rows.gate_up, Function::kSilu, rows.gated);
  multiply(rows.gated, own.down, segments[3], rows.added);
}

Tensor portable_decoder_layers(Tensor x, Tensors weights, std::vector<double> epsilons,
                               std::vector<int64_t> segments, int64_t heads, int64_t head_size,
                               int64_t intermediate_size, Tensor positions, Tensor table,
                               bool is_interleaved, double scale, int64_t window, Tensors caches,
                               Tensor slots, Tensor pages, Tensor query_starts, Tensor lengths) {
  const Layers layers{layers_of(kLayers, weights), segments, epsilons_of(kLayers, epsilons),
                      caches};
  const size_t count = layers.weights.size();
  check_dim(kLayers, "x", x, 2);
  check(segments.size() == 4, kLayers, ": segments must be of 4 products, but are of ",
        segments.size(), ".");
  check(caches.size() == count, kLayers, ": caches must be one of each of the ", count,
        " layers, but are ", caches.size(), ".");
  check(caches[0].dim() > 2, kLayers, ": caches must have blocks, heads and bytes.");
  check(heads > 0 && head_size > 0 && intermediate_size > 0, kLayers, ": sizes must be above 0.");
  const Sizes sizes{x.size(0), heads, caches[0].size(1), head_size, intermediate_size};
  const Sight sight{positions, table,        is_interleaved, slots, pages,
                    query_starts, lengths, scale,          window};
  const Rows rows(x, sizes);
  with_team([&] {
    for (size_t layer = 0; layer < count; ++layer) compute_layer(layer, x, layers, sight, rows);
  });
  return rows.added;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_decoder_layers", TORCH_BOX(&vllm_fork::portable_decoder_layers));
}
