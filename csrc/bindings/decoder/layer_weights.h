// What a decoder layer computes with, as the operators of all layers take it: one list of tensors,
// kTensorsOfLayer for each layer in the order of LayerWeights, empty where a layer has none.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "bindings/argument_checks.h"

namespace vllm_fork {

using Tensors = std::vector<Tensor>;

// A linear layer.
struct ProductWeights {
  const char* name;
  Tensor weight;
  std::optional<Tensor> how;  // what the operator needs beside it: an order, or exponents
  std::optional<Tensor> bias;
};

struct LayerWeights {
  Tensor input_norm;
  ProductWeights qkv;
  std::optional<Tensor> query_norm, key_norm;  // of each head by itself
  ProductWeights output;
  Tensor post_norm;
  ProductWeights gate_up, down;
};

constexpr size_t kTensorsOfLayer = 16;

inline std::vector<LayerWeights> layers_of(const char* op, const Tensors& weights) {
  check(!weights.empty(), op, ": there must be a layer.");
  check(weights.size() % kTensorsOfLayer == 0, op, ": weights must be ", kTensorsOfLayer,
        " tensors of each layer, but are ", weights.size(), ".");
  auto next = weights.begin();
  const auto optional = [&] {
    const Tensor& one = *next++;
    return one.numel() > 0 ? std::optional(one) : std::nullopt;
  };
  const auto product = [&](const char* name) {
    const Tensor weight = *next++;
    const auto how = optional();
    return ProductWeights{name, weight, how, optional()};
  };
  std::vector<LayerWeights> layers;
  while (next != weights.end()) {
    const Tensor input_norm = *next++;
    const auto qkv = product("qkv");
    const auto query_norm = optional();
    const auto key_norm = optional();
    const auto output = product("output");
    const Tensor post_norm = *next++;
    const auto gate_up = product("gate_up");
    layers.push_back({input_norm, qkv, query_norm, key_norm, output, post_norm, gate_up,
                      product("down")});
  }
  return layers;
}

// The epsilons of the norms of all layers.
struct Epsilons {
  double input, post, heads;
};

inline Epsilons epsilons_of(const char* op, const std::vector<double>& epsilons) {
  check(epsilons.size() == 3, op, ": epsilons must be 3, of a layer's norms and of heads', but are ",
        epsilons.size(), ".");
  return {epsilons[0], epsilons[1], epsilons[2]};
}

}  // namespace vllm_fork
