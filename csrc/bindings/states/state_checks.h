// Checks of the arguments of layers with states: of types, shapes, layouts and values, before
// anything is written.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

#include "bindings/argument_checks.h"

namespace vllm_fork {

// The requests of a step, and the blocks of states that they have.
struct RequestArguments {
  const Tensor& states;
  const Tensor& slots;
  const Tensor& query_start_loc;
  const Tensor& has_state;
};

struct ConvolutionArguments {
  const Tensor& x;
  const Tensor& weight;
  const std::optional<Tensor>& bias;
  RequestArguments requests;
};

struct Mamba2Arguments {
  const Tensor& x;
  const Tensor& dt;
  const Tensor& a_log;
  const Tensor& b;
  const Tensor& c;
  const std::optional<Tensor>& d;
  const Tensor& dt_bias;
  RequestArguments requests;
  double smallest_dt;
  double largest_dt;
};

struct DeltaRuleArguments {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& a;
  const Tensor& b;
  const Tensor& a_log;
  const Tensor& dt_bias;
  RequestArguments requests;
};

struct GatedNormArguments {
  const Tensor& x;
  const Tensor& gate;
  const std::optional<Tensor>& weight;
  double epsilon;
  int64_t group_size;
};

void check_convolution(const ConvolutionArguments& arguments);
void check_mamba2(const Mamba2Arguments& arguments);
void check_delta_rule(const DeltaRuleArguments& arguments);
void check_gated_norm(const GatedNormArguments& arguments);

}  // namespace vllm_fork
