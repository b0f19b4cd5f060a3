// The CPU implementation of decoder_rows: what other operators are made of, one after the other.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/argument_checks.h"
#include "bindings/cpu_operators.h"
#include "bindings/decoder/layer_weights.h"
#include "cpu/team/team.h"

namespace vllm_fork {
namespace {

constexpr const char* kRows = "decoder_rows";

// Rows from the first to before the last, a view.
Tensor rows_of(const Tensor& x, int64_t first, int64_t end) {
  Tensor whole = x;
  return torch::stable::narrow(whole, 0, first, end - first);
}

std::optional<Tensor> rows_of(const std::optional<Tensor>& x, int64_t first, int64_t end) {
  return x ? std::optional(rows_of(*x, first, end)) : std::nullopt;
}

// Columns of rows, a view.
Tensor columns(const Tensor& x, int64_t first, int64_t count) {
  Tensor whole = x;
  return torch::stable::narrow(whole, 1, first, count);
}

void write(Tensor into, const Tensor& x) { torch::stable::copy_(into, x); }

// PyTorch's own product.
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(x), from(weight), from(bias)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// Rows with each part of a weight, as the layers that it is of are multiplied.
void by_parts(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              std::initializer_list<int64_t> sizes, const Tensor& into) {
  int64_t first = 0;
  for (const int64_t size : sizes) {
    write(columns(into, first, size), linear(x, rows_of(weight, first, first + size),
                                             rows_of(bias, first, first + size)));
    first += size;
  }
}

// Rows of a step that are multiplied at once.
struct Part {
  enum Way : int64_t {
    kByRow,    // each as if it were alone
    kByParts,  // by PyTorch, with each of the weights that are one here
    kAtOnce,   // by PyTorch, with the whole
  };
  int64_t way, first, end;
};

// How one of the four products of each layer takes the rows of a step.
struct Product {
  std::vector<Part> parts;  // of the rows; none if each is alone

  bool calls_library() const {
    return std::any_of(parts.begin(), parts.end(),
                       [](const Part& part) { return part.way != Part::kByRow; });
  }

  // order: of `row_products`; sizes: of the weights that are one here.
  void multiply(const ProductWeights& own, int64_t order, const Tensor& x,
                std::initializer_list<int64_t> sizes, const Tensor& into) const {
    check(own.weight.dim() == 2 && own.weight.size(0) == into.size(1), kRows, ": ", own.name,
          " must have ", into.size(1), " rows in each layer, as it has in the first.");
    if (parts.empty()) multiply_single(own, order, x, sizes, into);
    for (const Part& part : parts) {
      const Tensor some = rows_of(x, part.first, part.end);
      const Tensor target = rows_of(into, part.first, part.end);
      if (part.way == Part::kByRow) {
        multiply_single(own, order, some, sizes, target);
      } else if (part.way == Part::kByParts) {
        by_parts(some, own.weight, own.bias, sizes, target);
      } else {
        write(target, linear(some, own.weight, own.bias));
      }
    }
  }

 private:
  // Rows in 16 bits with a number for their order, and in float32 with steps, of which a single
  // row, being one of sixteen lanes, takes longer than the library's own product.
  static void multiply_single(const ProductWeights& own, int64_t order, const Tensor& x,
                              std::initializer_list<int64_t> sizes, const Tensor& into) {
    if (!own.how) {
      row_products_into(into, x, own.weight, own.bias, order);
    } else if (x.size(0) == 1) {
      check_dtype(kRows, "x", x, ScalarType::Float);
      check_dtype(kRows, own.name, own.weight, ScalarType::Float);
      by_parts(x, own.weight, own.bias, sizes, into);
    } else {
      ordered_products_into(into, x, own.weight, own.bias, *own.how);
    }
  }
};

// The layers, and how each multiplies.
struct Layers {
  std::vector<LayerWeights> weights;
  std::vector<int64_t> orders;  // of qkv, output, gate_up and down in each layer
  Epsilons epsilons;
  std::array<Product, 4> products;

  // Whether rows are multiplied by PyTorch, which has its threads, and so its order, to itself.
  bool calls_library(int64_t rows) const {
    return std::any_of(products.begin(), products.end(),
                       [](const Product& one) { return one.calls_library(); }) ||
           (rows == 1 && weights[0].qkv.how);
  }
};

// Where the tokens of a step are in the pages of some layers.
struct Place {
  Tensor slots, blocks, starts, stops;
  Tensor table, spans, library_spans;  // of prompts; empty in a step without
  int64_t first;                       // row of the first of `starts`

  bool has_prompts() const { return table.numel() > 0; }
};

constexpr size_t kTensorsOfPlace = 7;

// What is attended to in a step.
struct Step {
  Tensor positions, cos_sin;
  bool is_neox;
  double scale;
  Tensors pages;                         // of each layer
  std::vector<Place> places;             // that some layers share
  std::vector<int64_t> place_of_layer;   // which of them is a layer's
  std::optional<Tensor> attention_order;
  std::vector<int64_t> activated;  // first and end of rows; none if all are at once

  bool calls_library(int64_t rows, int64_t gates) const {
    for (size_t i = 0; i < activated.size(); i += 2) {
      if (!silu_needs_no_threads(activated[i + 1] - activated[i], gates)) return true;
    }
    return (activated.empty() && !silu_needs_no_threads(rows, gates)) ||
           std::any_of(places.begin(), places.end(), [](const Place& one) {
             return one.has_prompts() && one.library_spans.size(0) > 0;
           });
  }
};

// [rows, heads * size] as [rows, heads, size], a view.
Tensor by_head(const Tensor& x, int64_t size) {
  return torch::stable::view(x, {x.size(0), x.size(1) / size, size});
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
        query_columns_(layers.weights[0].qkv.weight.size(0) - 2 * kv_columns_),
        gates_(layers.weights[0].gate_up.weight.size(0) / 2),
        x_(x) {
    check(kv_columns_ > 0 && query_columns_ > 0 && query_columns_ % kv_columns_ == 0, kRows,
          ": qkv has ", layers.weights[0].qkv.weight.size(0),
          " outputs, which are no queries, keys and values of ", step.pages[0].size(1),
          " heads with ", size_, " elements.");
    allocate();
  }

  void compute(int64_t layer) {
    const LayerWeights& own = layers_.weights[layer];
    const int64_t* orders = layers_.orders.data() + 4 * layer;
    const auto& [qkv, output, gate_up, down] = layers_.products;
    const Tensor& pages = step_.pages[layer];
    const Place& place = step_.places[step_.place_of_layer[layer]];
    rms_norm_rounded_into(normed_, total_, squares_, x_, residual_, own.input_norm,
                          layers_.epsilons.input);
    qkv.multiply(own.qkv, orders[0], normed_, {query_columns_, kv_columns_, kv_columns_},
                 projected_);
    rotate_rounded_into(query_, key_, step_.positions,
                        head_normed(query_norm_, own.query_norm, projected_query_),
                        head_normed(key_norm_, own.key_norm, projected_key_), step_.cos_sin,
                        size_, step_.is_neox);
    append_to_pages(pages, key_heads_, value_heads_, place.slots);
    attend(pages, place);
    output.multiply(own.output, orders[1], attended_, {hidden_}, mixed_);
    rms_norm_rounded_into(normed_, sum_, squares_, mixed_, residual_ ? total_ : x_, own.post_norm,
                          layers_.epsilons.post);
    gate_up.multiply(own.gate_up, orders[2], normed_, {gates_, gates_}, gates_and_up_);
    activate();
    down.multiply(own.down, orders[3], gated_, {hidden_}, added_);
    x_ = added_;
    residual_ = sum_;
  }

  // What the last layer adds, and to what.
  std::tuple<Tensor, Tensor> result() const { return {added_, sum_}; }

 private:
  Tensor rows_like(int64_t count) const { return torch::stable::new_empty(x_, {rows_, count}); }

  void attend(const Tensor& pages, const Place& place) const {
    const int64_t end = place.first + place.starts.size(0);
    if (place.first < end) {
      token_sdpa_into(rows_of(attended_, place.first, end), rows_of(query_tokens_, place.first, end),
                      pages, place.blocks, place.starts, place.stops, size_, step_.scale,
                      step_.attention_order);
    }
    if (!place.has_prompts()) return;
    for (const bool in_one : {true, false}) {
      const Tensor& spans = in_one ? place.spans : place.library_spans;
      if (spans.size(0) == 0) continue;
      prompt_sdpa(query_heads_, pages, place.table, spans, size_, step_.scale,
                  query_columns_ != kv_columns_, in_one, attended_heads_);
    }
  }

  void activate() const {
    if (step_.activated.empty()) silu_and_mul_rounded_into(gated_, gate_, gates_and_up_);
    for (size_t i = 0; i < step_.activated.size(); i += 2) {
      const int64_t first = step_.activated[i], end = step_.activated[i + 1];
      silu_and_mul_rounded_into(rows_of(gated_, first, end), rows_of(gate_, first, end),
                                rows_of(gates_and_up_, first, end));
    }
  }

  void allocate() {
    for (Tensor* one : {&normed_, &total_, &mixed_, &sum_, &added_}) *one = rows_like(hidden_);
    squares_ = torch::stable::new_empty(x_, {rows_, hidden_}, ScalarType::Float);
    projected_ = rows_like(query_columns_ + 2 * kv_columns_);
    projected_query_ = columns(projected_, 0, query_columns_);
    projected_key_ = columns(projected_, query_columns_, kv_columns_);
    value_heads_ = by_head(columns(projected_, query_columns_ + kv_columns_, kv_columns_), size_);
    query_ = rows_like(query_columns_);
    query_heads_ = by_head(query_, size_);
    query_tokens_ = torch::stable::unsqueeze(query_heads_, 2);
    key_ = rows_like(kv_columns_);
    key_heads_ = by_head(key_, size_);
    attended_ = rows_like(query_columns_);
    attended_heads_ = by_head(attended_, size_);
    gates_and_up_ = rows_like(2 * gates_);
    gate_ = rows_like(gates_);
    gated_ = rows_like(gates_);
  }

  const Tensor& head_normed(std::optional<HeadNorm>& norm, const std::optional<Tensor>& weight,
                            const Tensor& x) const {
    if (!weight) return x;
    if (!norm) norm.emplace(x, size_);
    return (*norm)(x, *weight, layers_.epsilons.heads);
  }

  const Layers& layers_;
  const Step& step_;
  int64_t rows_, hidden_, size_, kv_columns_, query_columns_, gates_;
  Tensor x_, normed_, total_, squares_, projected_, projected_query_, projected_key_, value_heads_;
  Tensor query_, query_heads_, query_tokens_, key_, key_heads_, attended_, attended_heads_, mixed_;
  Tensor sum_, gates_and_up_, gate_, gated_, added_;
  std::optional<Tensor> residual_;
  std::optional<HeadNorm> query_norm_, key_norm_;
};

void check_step(const Step& step, int64_t rows, size_t num_layers) {
  check(step.pages.size() == num_layers, kRows, ": pages must have ", num_layers,
        " entries, but has ", step.pages.size(), ".");
  check(step.place_of_layer.size() == num_layers, kRows, ": place_of_layer must have ", num_layers,
        " entries, but has ", step.place_of_layer.size(), ".");
  const auto count = static_cast<int64_t>(step.places.size());
  for (size_t i = 0; i < num_layers; ++i) {
    check_dim(kRows, "pages", step.pages[i], 4);
    check(step.pages[i].size(1) == step.pages[0].size(1) &&
              step.pages[i].size(3) == step.pages[0].size(3),
          kRows, ": pages[", i, "] must have the heads of the first layer's.");
    const int64_t place = step.place_of_layer[i];
    check(0 <= place && place < count, kRows, ": place_of_layer[", i, "] is ", place,
          ", and there are ", count, " places.");
  }
  for (const Place& place : step.places) {
    check_dim(kRows, "starts", place.starts, 1);
    const int64_t tokens = place.starts.size(0);
    check(0 <= place.first && place.first + tokens <= rows, kRows, ": firsts has row ",
          place.first, " for the first of ", tokens, " tokens, and there are ", rows, " rows.");
    if (!place.has_prompts()) continue;
    check_dim(kRows, "spans", place.spans, 2);
    check_dim(kRows, "library_spans", place.library_spans, 2);
  }
}

std::vector<Place> places_of(const Tensors& tensors, const std::vector<int64_t>& firsts) {
  check(tensors.size() == kTensorsOfPlace * firsts.size(), kRows, ": places must be ",
        kTensorsOfPlace, " tensors for each of ", firsts.size(), " firsts, but are ",
        tensors.size(), ".");
  std::vector<Place> places;
  for (size_t i = 0; i < firsts.size(); ++i) {
    const Tensor* own = tensors.data() + kTensorsOfPlace * i;
    places.push_back({own[0], own[1], own[2], own[3], own[4], own[5], own[6], firsts[i]});
  }
  return places;
}

// That first and end of some rows, by turns, are all rows in succession.
void check_rows(const char* name, const std::vector<int64_t>& bounds, int64_t rows) {
  int64_t next = 0;
  for (size_t i = 0; i + 2 <= bounds.size(); i += 2) {
    check(bounds[i] == next && bounds[i] < bounds[i + 1], kRows, ": ", name, " has rows ",
          bounds[i], " to ", bounds[i + 1], ", where row ", next, " begins.");
    next = bounds[i + 1];
  }
  check(bounds.size() % 2 == 0 && (bounds.empty() || next == rows), kRows, ": ", name,
        " must be of all ", rows, " rows.");
}

// The parts of each product; numbers: of each part its product, its way, first row and end.
std::array<Product, 4> products_of(const std::vector<int64_t>& numbers, int64_t rows) {
  std::array<Product, 4> products;
  check(numbers.size() % 4 == 0, kRows, ": at_once must have four numbers for each part, but has ",
        numbers.size(), ".");
  for (size_t i = 0; i < numbers.size(); i += 4) {
    const int64_t product = numbers[i], way = numbers[i + 1];
    check(0 <= product && product < 4, kRows, ": at_once has ", product, " for one of 4 products.");
    check(Part::kByRow <= way && way <= Part::kAtOnce, kRows, ": at_once has ", way,
          " for a way to multiply.");
    products[product].parts.push_back({way, numbers[i + 2], numbers[i + 3]});
  }
  for (const Product& one : products) {
    std::vector<int64_t> bounds;
    for (const Part& part : one.parts) bounds.insert(bounds.end(), {part.first, part.end});
    check_rows("at_once", bounds, rows);
  }
  return products;
}

std::tuple<Tensor, Tensor> decoder_rows(
    Tensor x, Tensors weights, std::vector<double> epsilons, std::vector<int64_t> orders,
    std::optional<Tensor> attention_order, Tensor positions, Tensor cos_sin, bool is_neox,
    double scale, Tensors pages, Tensors places, std::vector<int64_t> firsts,
    std::vector<int64_t> place_of_layer, std::vector<int64_t> at_once,
    std::vector<int64_t> activated) {
  check_dim(kRows, "x", x, 2);
  const int64_t rows = x.size(0);
  const Layers layers{layers_of(kRows, weights), orders, epsilons_of(kRows, epsilons),
                      products_of(at_once, rows)};
  const size_t count = layers.weights.size();
  check(orders.size() == 4 * count, kRows, ": orders must have ", 4 * count, " entries, but has ",
        orders.size(), ".");
  check_dim(kRows, "qkv", layers.weights[0].qkv.weight, 2);
  check_dim(kRows, "gate_up", layers.weights[0].gate_up.weight, 2);
  check_rows("activated", activated, rows);
  const Step step{positions, cos_sin,        is_neox,         scale,    pages,
                  places_of(places, firsts), place_of_layer, attention_order, activated};
  check_step(step, rows, count);
  Decoder decoder(x, layers, step);
  const auto compute = [&] {
    for (size_t layer = 0; layer < count; ++layer) {
      decoder.compute(static_cast<int64_t>(layer));
    }
  };
  if (layers.calls_library(rows) || step.calls_library(rows, layers.weights[0].gate_up.weight.size(0) / 2)) {
    compute();
  } else {
    with_team(compute);
  }
  return decoder.result();
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("decoder_rows", TORCH_BOX(&vllm_fork::decoder_rows));
}
