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
#include "cpu/team/team.h"

namespace vllm_fork {
namespace {

constexpr const char* kRows = "decoder_rows";

using Tensors = std::vector<Tensor>;

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

// The weights of layers that multiply the same way, an entry for each layer.
struct Products {
  const char* name;
  Tensors weight, bias, steps;  // the latter two are empty if there are none
  int64_t place;                // of their numbers among the four of a layer
  std::vector<Part> parts;      // of the rows; none if each is alone

  bool calls_library() const {
    return std::any_of(parts.begin(), parts.end(),
                       [](const Part& part) { return part.way != Part::kByRow; });
  }

  void multiply(int64_t layer, const Tensor& x, const std::vector<int64_t>& orders,
                std::initializer_list<int64_t> sizes, const Tensor& into) const {
    const Tensor& own = weight[layer];
    const std::optional<Tensor> offsets =
        bias.empty() ? std::nullopt : std::optional(bias[layer]);
    check(own.dim() == 2 && own.size(0) == into.size(1), kRows, ": ", name, "[", layer,
          "] must have ", into.size(1), " rows, as that of the first layer has.");
    if (parts.empty()) multiply_single(layer, x, own, offsets, orders, sizes, into);
    for (const Part& part : parts) {
      const Tensor some = rows_of(x, part.first, part.end);
      const Tensor target = rows_of(into, part.first, part.end);
      if (part.way == Part::kByRow) {
        multiply_single(layer, some, own, offsets, orders, sizes, target);
      } else if (part.way == Part::kByParts) {
        by_parts(some, own, offsets, sizes, target);
      } else {
        write(target, linear(some, own, offsets));
      }
    }
  }

 private:
  // Rows in 16 bits with a number for their order, and in float32 with steps, of which a single
  // row, being one of sixteen lanes, takes longer than the library's own product.
  void multiply_single(int64_t layer, const Tensor& x, const Tensor& own,
                       const std::optional<Tensor>& offsets, const std::vector<int64_t>& orders,
                       std::initializer_list<int64_t> sizes, const Tensor& into) const {
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

  // Whether rows are multiplied by PyTorch, which has its threads, and so its order, to itself.
  bool calls_library(int64_t rows) const {
    const auto all = {&qkv, &output, &gate_up, &down};
    return std::any_of(all.begin(), all.end(), [&](const Products* one) {
      return one->calls_library() || (rows == 1 && !one->steps.empty());
    });
  }
};

// Where the tokens of a step are, and what is attended to.
struct Step {
  Tensor positions, cos_sin;
  bool is_neox;
  Tensors pages, slots, blocks, starts, stops;
  std::vector<int64_t> firsts;           // rows of the first of `starts`
  Tensors tables, spans, library_spans;  // of prompts; none in a step without
  std::vector<int64_t> places;           // which of `slots`, ... is that of each layer
  std::optional<Tensor> attention_order;
  double scale;
  std::vector<int64_t> activated;  // first and end of rows; none if all are at once

  bool calls_library(int64_t rows, int64_t gates) const {
    for (size_t i = 0; i < activated.size(); i += 2) {
      if (!silu_needs_no_threads(activated[i + 1] - activated[i], gates)) return true;
    }
    return (activated.empty() && !silu_needs_no_threads(rows, gates)) ||
           std::any_of(library_spans.begin(), library_spans.end(),
                       [](const Tensor& one) { return one.size(0) > 0; });
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
    attend(pages, place);
    layers_.output.multiply(layer, attended_, layers_.orders, {hidden_}, mixed_);
    rms_norm_rounded_into(normed_, sum_, squares_, mixed_, residual_ ? total_ : x_,
                          layers_.post_norm[layer], layers_.post_epsilon);
    layers_.gate_up.multiply(layer, normed_, layers_.orders, {gates_, gates_}, gates_and_up_);
    activate();
    layers_.down.multiply(layer, gated_, layers_.orders, {hidden_}, added_);
    x_ = added_;
    residual_ = sum_;
  }

  // What the last layer adds, and to what.
  std::tuple<Tensor, Tensor> result() const { return {added_, sum_}; }

 private:
  Tensor rows_like(int64_t count) const { return torch::stable::new_empty(x_, {rows_, count}); }

  void attend(const Tensor& pages, int64_t place) const {
    const int64_t first = step_.firsts[place], end = first + step_.starts[place].size(0);
    if (first < end) {
      token_sdpa_into(rows_of(attended_, first, end), rows_of(query_tokens_, first, end), pages,
                      step_.blocks[place], step_.starts[place], step_.stops[place], size_,
                      step_.scale, step_.attention_order);
    }
    if (step_.tables.empty()) return;
    for (const bool in_one : {true, false}) {
      const Tensor& spans = (in_one ? step_.spans : step_.library_spans)[place];
      if (spans.size(0) == 0) continue;
      prompt_sdpa(query_heads_, pages, step_.tables[place], spans, size_, step_.scale,
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
  Tensor query_, query_heads_, query_tokens_, key_, key_heads_, attended_, attended_heads_, mixed_;
  Tensor sum_, gates_and_up_, gate_, gated_, added_;
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

void check_layers(const Layers& layers) {
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

void check_step(const Step& step, int64_t rows, size_t num_layers) {
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
  check_list("firsts", step.firsts.size(), step.slots.size());
  for (size_t i = 0; i < step.slots.size(); ++i) {
    check_dim(kRows, "starts", step.starts[i], 1);
    const int64_t first = step.firsts[i], count = step.starts[i].size(0);
    check(0 <= first && first + count <= rows, kRows, ": firsts has row ", first,
          " for the first of ", count, " tokens, and there are ", rows, " rows.");
  }
  for (const auto& [name, list] : {std::pair("tables", &step.tables),
                                   std::pair("spans", &step.spans),
                                   std::pair("library_spans", &step.library_spans)}) {
    if (!step.tables.empty()) check_list(name, list->size(), step.slots.size());
  }
}

// That first and end, which are the last two of `width` numbers, are all rows in succession.
void check_rows(const char* name, const std::vector<int64_t>& numbers, size_t width,
                int64_t rows) {
  int64_t next = 0;
  for (size_t i = 0; i + width <= numbers.size(); i += width) {
    const int64_t first = numbers[i + width - 2], end = numbers[i + width - 1];
    check(first == next && first < end, kRows, ": ", name, " has rows ", first, " to ", end,
          ", where row ", next, " begins.");
    next = end;
  }
  check(numbers.size() % width == 0 && (numbers.empty() || next == rows), kRows, ": ", name,
        " must be of all ", rows, " rows.");
}

std::vector<Part> parts_of(const char* name, const std::vector<int64_t>& numbers, int64_t rows) {
  check_rows(name, numbers, 3, rows);
  std::vector<Part> parts;
  for (size_t i = 0; i < numbers.size(); i += 3) {
    check(Part::kByRow <= numbers[i] && numbers[i] <= Part::kAtOnce, kRows, ": ", name, " has ",
          numbers[i], " for a way to multiply.");
    parts.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
  }
  return parts;
}

std::tuple<Tensor, Tensor> decoder_rows(
    Tensor x, Tensors input_norm, Tensors qkv, Tensors qkv_bias, Tensors qkv_steps,
    Tensors query_norm, Tensors key_norm, Tensors output, Tensors output_bias,
    Tensors output_steps, Tensors post_norm, Tensors gate_up, Tensors gate_up_bias,
    Tensors gate_up_steps, Tensors down, Tensors down_bias, Tensors down_steps,
    std::vector<int64_t> orders, double input_epsilon, double post_epsilon, double head_epsilon,
    std::optional<Tensor> attention_order, Tensor positions, Tensor cos_sin, bool is_neox,
    Tensors pages, Tensors slots, Tensors blocks, Tensors starts, Tensors stops,
    std::vector<int64_t> firsts, Tensors tables, Tensors spans, Tensors library_spans,
    std::vector<int64_t> places, double scale, std::vector<int64_t> qkv_parts,
    std::vector<int64_t> output_parts, std::vector<int64_t> gate_up_parts,
    std::vector<int64_t> down_parts, std::vector<int64_t> activated) {
  check_dim(kRows, "x", x, 2);
  const int64_t rows = x.size(0);
  const Layers layers{
      input_norm,
      query_norm,
      key_norm,
      post_norm,
      {"qkv", qkv, qkv_bias, qkv_steps, 0, parts_of("qkv_parts", qkv_parts, rows)},
      {"output", output, output_bias, output_steps, 1,
       parts_of("output_parts", output_parts, rows)},
      {"gate_up", gate_up, gate_up_bias, gate_up_steps, 2,
       parts_of("gate_up_parts", gate_up_parts, rows)},
      {"down", down, down_bias, down_steps, 3, parts_of("down_parts", down_parts, rows)},
      orders,
      input_epsilon,
      post_epsilon,
      head_epsilon,
  };
  check_rows("activated", activated, 2, rows);
  const Step step{positions, cos_sin, is_neox, pages,           slots,  blocks,
                  starts,    stops,   firsts,  tables,          spans,  library_spans,
                  places,    attention_order,  scale,           activated};
  check_layers(layers);
  check_step(step, rows, input_norm.size());
  Decoder decoder(x, layers, step);
  const auto compute = [&] {
    for (size_t layer = 0; layer < input_norm.size(); ++layer) {
      decoder.compute(static_cast<int64_t>(layer));
    }
  };
  if (layers.calls_library(rows) || step.calls_library(rows, gate_up[0].size(0) / 2)) {
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
