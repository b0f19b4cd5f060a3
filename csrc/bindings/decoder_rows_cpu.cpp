// The CPU implementation of decoder_rows: what other operators are made of, one after the other.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/argument_checks.h"
#include "bindings/cpu_operators.h"

namespace vllm_fork {
namespace {

constexpr const char* kRows = "decoder_rows";

using Tensors = std::vector<Tensor>;

// PyTorch's own product.
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(x), from(weight), from(bias)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// A single float32 row with each part of a weight, as the layers that it is of are multiplied.
void by_parts(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              std::initializer_list<int64_t> sizes, const Tensor& into) {
  auto* target = static_cast<float*>(into.data_ptr());
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
}

// The weights of layers that multiply the same way, an entry for each layer.
struct Products {
  const char* name;
  Tensors weight, bias, steps;  // the latter two are empty if there are none
  int64_t place;                // of their numbers among the four of a layer

  // Rows in 16 bits with a number for their order, and in float32 with steps, of which a single
  // row, being one of sixteen lanes, takes longer than the library's own product.
  void multiply(int64_t layer, const Tensor& x, const std::vector<int64_t>& orders,
                std::initializer_list<int64_t> sizes, const Tensor& into) const {
    const Tensor& own = weight[layer];
    const std::optional<Tensor> offsets =
        bias.empty() ? std::nullopt : std::optional(bias[layer]);
    check(own.dim() == 2 && own.size(0) == into.size(1), kRows, ": ", name, "[", layer,
          "] must have ", into.size(1), " rows, as that of the first layer has.");
    if (steps.empty()) {
      row_products_into(into, x, own, offsets, orders[4 * layer + place]);
    } else if (x.size(0) == 1) {
      check_dtype(kRows, "x", x, ScalarType::Float);
      check_dtype(kRows, name, own, ScalarType::Float);
      by_parts(x, own, offsets, sizes, into);
    } else {
      ordered_products_into(into, x, own, offsets, steps[layer]);
    }
  }
};

// The weights of all layers.
struct Layers {
  Tensors input_norm, query_norm, key_norm, post_norm;  // those of heads may be missing
  Products qkv, output, gate_up, down;
  std::vector<int64_t> orders;
  double input_epsilon, post_epsilon, head_epsilon;
};

// Where the tokens of a step are, and what is attended to.
struct Step {
  Tensor positions, cos_sin;
  bool is_neox;
  Tensors pages, slots, blocks, starts, stops;
  std::vector<int64_t> places;  // which of `slots`, ... is that of each layer
  std::optional<Tensor> attention_order;
  double scale;
};

// [rows, heads * size] as [rows, heads, size], a view.
Tensor by_head(const Tensor& x, int64_t size) {
  return torch::stable::view(x, {x.size(0), x.size(1) / size, size});
}

// Columns of rows, a view.
Tensor columns(const Tensor& x, int64_t first, int64_t count) {
  Tensor whole = x;
  return torch::stable::narrow(whole, 1, first, count);
}

// Each head of some columns normed by itself.
class HeadNorm {
 public:
  // x: [rows, heads * size], what will be normed.
  HeadNorm(const Tensor& x, int64_t size)
      : heads_(torch::stable::new_empty(x, {x.size(0) * x.size(1) / size, size})),
        squares_(torch::stable::new_empty(heads_, {heads_.size(0), size}, ScalarType::Float)),
        none_(torch::stable::new_empty(heads_, {0, size})),
        normed_(torch::stable::new_empty(heads_, {heads_.size(0), size})),
        copy_(torch::stable::view(heads_, {x.size(0), x.size(1)})),
        result_(torch::stable::view(normed_, {x.size(0), x.size(1)})) {}

  const Tensor& operator()(const Tensor& x, const Tensor& weight, double epsilon) {
    torch::stable::copy_(copy_, x);
    rms_norm_rounded_into(normed_, none_, squares_, heads_, std::nullopt, weight, epsilon);
    return result_;
  }

 private:
  Tensor heads_, squares_, none_, normed_, copy_, result_;
};

// Computes layers one after the other, in memory that they share.
class Decoder {
 public:
  Decoder(const Tensor& x, const Layers& layers, const Step& step)
      : layers_(layers),
        step_(step),
        rows_(x.size(0)),
        hidden_(x.size(1)),
        size_(step.pages[0].size(3) / 2),
        kv_columns_(step.pages[0].size(1) * size_),
        query_columns_(layers.qkv.weight[0].size(0) - 2 * kv_columns_),
        gates_(layers.gate_up.weight[0].size(0) / 2),
        x_(x) {
    check(kv_columns_ > 0 && query_columns_ > 0 && query_columns_ % kv_columns_ == 0, kRows,
          ": qkv has ", layers.qkv.weight[0].size(0),
          " outputs, which are no queries, keys and values of ", step.pages[0].size(1),
          " heads with ", size_, " elements.");
    allocate();
  }

  void compute(int64_t layer) {
    const Tensor& pages = step_.pages[layer];
    const int64_t place = step_.places[layer];
    rms_norm_rounded_into(normed_, total_, squares_, x_, residual_, layers_.input_norm[layer],
                          layers_.input_epsilon);
    layers_.qkv.multiply(layer, normed_, layers_.orders,
                         {query_columns_, kv_columns_, kv_columns_}, projected_);
    rotate_rounded_into(query_, key_, step_.positions,
                        head_normed(query_norm_, layers_.query_norm, layer, projected_query_),
                        head_normed(key_norm_, layers_.key_norm, layer, projected_key_),
                        step_.cos_sin, size_, step_.is_neox);
    append_to_pages(pages, key_heads_, value_heads_, step_.slots[place]);
    token_sdpa_into(attended_, query_heads_, pages, step_.blocks[place], step_.starts[place],
                    step_.stops[place], size_, step_.scale, step_.attention_order);
    layers_.output.multiply(layer, attended_, layers_.orders, {hidden_}, mixed_);
    rms_norm_rounded_into(normed_, sum_, squares_, mixed_, residual_ ? total_ : x_,
                          layers_.post_norm[layer], layers_.post_epsilon);
    layers_.gate_up.multiply(layer, normed_, layers_.orders, {gates_, gates_}, gates_and_up_);
    silu_and_mul_rounded_into(gated_, gate_, gates_and_up_);
    layers_.down.multiply(layer, gated_, layers_.orders, {hidden_}, added_);
    x_ = added_;
    residual_ = sum_;
  }

  // What the last layer adds, and to what.
  std::tuple<Tensor, Tensor> result() const { return {added_, sum_}; }

 private:
  Tensor rows_of(int64_t count) const { return torch::stable::new_empty(x_, {rows_, count}); }

  void allocate() {
    for (Tensor* one : {&normed_, &total_, &mixed_, &sum_, &added_}) *one = rows_of(hidden_);
    squares_ = torch::stable::new_empty(x_, {rows_, hidden_}, ScalarType::Float);
    projected_ = rows_of(query_columns_ + 2 * kv_columns_);
    projected_query_ = columns(projected_, 0, query_columns_);
    projected_key_ = columns(projected_, query_columns_, kv_columns_);
    value_heads_ = by_head(columns(projected_, query_columns_ + kv_columns_, kv_columns_), size_);
    query_ = rows_of(query_columns_);
    query_heads_ = torch::stable::view(query_, {rows_, query_columns_ / size_, 1, size_});
    key_ = rows_of(kv_columns_);
    key_heads_ = by_head(key_, size_);
    attended_ = rows_of(query_columns_);
    gates_and_up_ = rows_of(2 * gates_);
    gate_ = rows_of(gates_);
    gated_ = rows_of(gates_);
    if (!layers_.query_norm.empty()) query_norm_.emplace(projected_query_, size_);
    if (!layers_.key_norm.empty()) key_norm_.emplace(projected_key_, size_);
  }

  const Tensor& head_normed(std::optional<HeadNorm>& norm, const Tensors& weights, int64_t layer,
                            const Tensor& x) const {
    return norm ? (*norm)(x, weights[layer], layers_.head_epsilon) : x;
  }

  const Layers& layers_;
  const Step& step_;
  int64_t rows_, hidden_, size_, kv_columns_, query_columns_, gates_;
  Tensor x_, normed_, total_, squares_, projected_, projected_query_, projected_key_, value_heads_;
  Tensor query_, query_heads_, key_, key_heads_, attended_, mixed_, sum_, gates_and_up_, gate_;
  Tensor gated_, added_;
  std::optional<Tensor> residual_;
  std::optional<HeadNorm> query_norm_, key_norm_;
};

void check_list(const char* name, size_t found, size_t expected) {
  check(found == expected, kRows, ": ", name, " must have ", expected, " entries, but has ", found,
        ".");
}

void check_optional(const char* name, const Tensors& list, size_t expected) {
  if (!list.empty()) check_list(name, list.size(), expected);
}

void check_products(const Products& products, size_t count) {
  check_list(products.name, products.weight.size(), count);
  check_optional(products.name, products.bias, count);
  check_optional(products.name, products.steps, count);
  check_dim(kRows, products.name, products.weight[0], 2);
}

void check_layers(const Tensor& x, const Layers& layers) {
  check_dim(kRows, "x", x, 2);
  const size_t count = layers.input_norm.size();
  check(count > 0, kRows, ": there must be a layer.");
  for (const Products* one : {&layers.qkv, &layers.output, &layers.gate_up, &layers.down}) {
    check_products(*one, count);
  }
  check_list("post_norm", layers.post_norm.size(), count);
  check_list("orders", layers.orders.size(), 4 * count);
  check_optional("query_norm", layers.query_norm, count);
  check_optional("key_norm", layers.key_norm, count);
}

void check_step(const Step& step, size_t num_layers) {
  check_list("pages", step.pages.size(), num_layers);
  check_list("places", step.places.size(), num_layers);
  for (size_t i = 0; i < num_layers; ++i) {
    check_dim(kRows, "pages", step.pages[i], 4);
    check(step.pages[i].size(1) == step.pages[0].size(1) &&
              step.pages[i].size(3) == step.pages[0].size(3),
          kRows, ": pages[", i, "] must have the heads of the first layer's.");
    const int64_t place = step.places[i], count = static_cast<int64_t>(step.slots.size());
    check(0 <= place && place < count, kRows, ": places[", i, "] is ", place, ", and there are ",
          count, ".");
  }
  for (const auto& [name, list] : {std::pair("blocks", &step.blocks),
                                   std::pair("starts", &step.starts),
                                   std::pair("stops", &step.stops)}) {
    check_list(name, list->size(), step.slots.size());
  }
}

std::tuple<Tensor, Tensor> decoder_rows(
    Tensor x, Tensors input_norm, Tensors qkv, Tensors qkv_bias, Tensors qkv_steps,
    Tensors query_norm, Tensors key_norm, Tensors output, Tensors output_bias,
    Tensors output_steps, Tensors post_norm, Tensors gate_up, Tensors gate_up_bias,
    Tensors gate_up_steps, Tensors down, Tensors down_bias, Tensors down_steps,
    std::vector<int64_t> orders, double input_epsilon, double post_epsilon, double head_epsilon,
    std::optional<Tensor> attention_order, Tensor positions, Tensor cos_sin, bool is_neox,
    Tensors pages, Tensors slots, Tensors blocks, Tensors starts, Tensors stops,
    std::vector<int64_t> places, double scale) {
  const Layers layers{
      input_norm,
      query_norm,
      key_norm,
      post_norm,
      {"qkv", qkv, qkv_bias, qkv_steps, 0},
      {"output", output, output_bias, output_steps, 1},
      {"gate_up", gate_up, gate_up_bias, gate_up_steps, 2},
      {"down", down, down_bias, down_steps, 3},
      orders,
      input_epsilon,
      post_epsilon,
      head_epsilon,
  };
  const Step step{positions, cos_sin, is_neox, pages,  slots,           blocks,
                  starts,    stops,   places,  attention_order, scale};
  check_layers(x, layers);
  check_step(step, input_norm.size());
  Decoder decoder(x, layers, step);
  for (size_t layer = 0; layer < input_norm.size(); ++layer) {
    decoder.compute(static_cast<int64_t>(layer));
  }
  return decoder.result();
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("decoder_rows", TORCH_BOX(&vllm_fork::decoder_rows));
}
