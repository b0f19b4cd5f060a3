#include "bindings/states/state_checks.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "bindings/formats.h"

namespace vllm_fork {
namespace {

constexpr const char* kConvolution = "portable_causal_conv";
constexpr const char* kMamba2 = "portable_mamba2_scan";
constexpr const char* kDeltaRule = "portable_gated_delta_rule";
constexpr const char* kGatedNorm = "portable_gated_rms_norm";

void check_last_contiguous(const char* op, const char* name, const Tensor& x) {
  check(x.size(-1) <= 1 || x.stride(-1) == 1, op, ": the last dimension of ", name,
        " must be contiguous.");
}

void check_shape(const char* op, const char* name, const Tensor& x,
                 std::initializer_list<int64_t> shape) {
  const bool is_same = x.dim() == static_cast<int64_t>(shape.size()) &&
                       std::equal(shape.begin(), shape.end(), x.sizes().begin());
  std::ostringstream wanted;
  for (const int64_t size : shape) wanted << (wanted.tellp() > 0 ? ", " : "") << size;
  check(is_same, op, ": ", name, " must have the shape [", wanted.str(), "].");
}

// Numbers of tokens.
void check_inputs(const char* op, const char* name, const Tensor& x, int64_t dim) {
  check_portable_type(op, name, x);
  check_dim(op, name, x, dim);
  check_last_contiguous(op, name, x);
}

void check_inputs(const char* op, const char* name, const Tensor& x,
                  std::initializer_list<int64_t> shape) {
  check_inputs(op, name, x, static_cast<int64_t>(shape.size()));
  check_shape(op, name, x, shape);
}

// A number for each of `length` things.
void check_parameter(const char* op, const char* name, const Tensor& parameter, int64_t length,
                     const char* things) {
  check_portable_type(op, name, parameter);
  check_dim(op, name, parameter, 1);
  check_contiguous(op, name, parameter);
  check_length(op, name, parameter, length, things);
}

void check_multiple(const char* op, const char* many, int64_t count, const char* few,
                    int64_t divisor) {
  check(divisor > 0 && count % divisor == 0, op, ": the ", count, " ", many,
        " must be a multiple of the ", divisor, " ", few, ".");
}

// Requests follow one another, and are within the tokens.
void check_starts(const char* op, const int32_t* starts, int64_t requests, int64_t tokens) {
  check(starts[0] == 0, op, ": query_start_loc must begin with 0, but begins with ", starts[0],
        ".");
  for (int64_t i = 0; i < requests; ++i) {
    check(starts[i] <= starts[i + 1], op, ": query_start_loc must not fall, but query_start_loc[",
          i + 1, "] is ", starts[i + 1], " behind ", starts[i], ".");
  }
  check(starts[requests] <= tokens, op, ": query_start_loc must not end behind the ", tokens,
        " tokens, but ends with ", starts[requests], ".");
}

// Every request that has tokens has a block of its own.
void check_slots(const char* op, const int32_t* slots, const int32_t* starts, int64_t requests,
                 int64_t blocks) {
  std::vector<int32_t> used;
  for (int64_t i = 0; i < requests; ++i) {
    if (starts[i] == starts[i + 1]) continue;
    check(0 <= slots[i] && slots[i] < blocks, op, ": slots[", i, "] is ", slots[i],
          ", but states has ", blocks, " blocks.");
    used.push_back(slots[i]);
  }
  std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  check(twice == used.end(), op, ": slots must differ, but two are ",
        twice == used.end() ? 0 : *twice, ".");
}

void check_requests(const char* op, const RequestArguments& a, int64_t tokens) {
  check_last_contiguous(op, "states", a.states);
  check_dtype(op, "slots", a.slots, ScalarType::Int);
  check_dim(op, "slots", a.slots, 1);
  check_contiguous(op, "slots", a.slots);
  const int64_t requests = a.slots.size(0);
  check_entries(op, "query_start_loc", a.query_start_loc, ScalarType::Int, requests + 1,
                "slots and the end");
  check_entries(op, "has_state", a.has_state, ScalarType::Bool, requests, "slots");
  const auto* starts = a.query_start_loc.const_data_ptr<int32_t>();
  check_starts(op, starts, requests, tokens);
  check_slots(op, a.slots.const_data_ptr<int32_t>(), starts, requests, a.states.size(0));
}

// The states of heads, [blocks, heads, rows, columns].
void check_matrices(const char* op, const Tensor& states, int64_t heads, int64_t rows,
                    int64_t columns) {
  check_dtype(op, "states", states, ScalarType::Float);
  check_dim(op, "states", states, 4);
  check_shape(op, "states", states, {states.size(0), heads, rows, columns});
}

}  // namespace

void check_convolution(const ConvolutionArguments& a) {
  check_inputs(kConvolution, "x", a.x, 2);
  const int64_t channels = a.x.size(1);
  check_portable_type(kConvolution, "weight", a.weight);
  check_dim(kConvolution, "weight", a.weight, 2);
  check_contiguous(kConvolution, "weight", a.weight);
  check_length(kConvolution, "weight", a.weight, channels, "channels of x");
  check(a.weight.size(1) >= 1, kConvolution, ": weight must have at least one column.");
  if (a.bias) check_parameter(kConvolution, "bias", *a.bias, channels, "channels of x");
  const Tensor& states = a.requests.states;
  check_dtype(kConvolution, "states", states, a.x.scalar_type());
  check_dim(kConvolution, "states", states, 3);
  check_shape(kConvolution, "states", states, {states.size(0), a.weight.size(1) - 1, channels});
  check_requests(kConvolution, a.requests, a.x.size(0));
}

void check_mamba2(const Mamba2Arguments& a) {
  check_inputs(kMamba2, "x", a.x, 3);
  const int64_t tokens = a.x.size(0);
  const int64_t heads = a.x.size(1);
  check_inputs(kMamba2, "dt", a.dt, {tokens, heads});
  check_inputs(kMamba2, "b", a.b, 3);
  check_inputs(kMamba2, "c", a.c, {tokens, a.b.size(1), a.b.size(2)});
  check_shape(kMamba2, "b", a.b, {tokens, a.b.size(1), a.b.size(2)});
  check_multiple(kMamba2, "heads of x", heads, "groups of b", a.b.size(1));
  check_parameter(kMamba2, "a_log", a.a_log, heads, "heads of x");
  check_parameter(kMamba2, "dt_bias", a.dt_bias, heads, "heads of x");
  if (a.d) check_parameter(kMamba2, "d", *a.d, heads, "heads of x");
  check(a.smallest_dt <= a.largest_dt, kMamba2, ": dt_limits must not fall, but are ",
        a.smallest_dt, " and ", a.largest_dt, ".");
  check_matrices(kMamba2, a.requests.states, heads, a.b.size(2), a.x.size(2));
  check_requests(kMamba2, a.requests, tokens);
}

void check_delta_rule(const DeltaRuleArguments& a) {
  check_inputs(kDeltaRule, "q", a.q, 3);
  check_inputs(kDeltaRule, "v", a.v, 3);
  const int64_t tokens = a.v.size(0);
  const int64_t heads = a.v.size(1);
  const int64_t key_heads = a.q.size(1);
  const int64_t key_size = a.q.size(2);
  check_shape(kDeltaRule, "q", a.q, {tokens, key_heads, key_size});
  check_inputs(kDeltaRule, "k", a.k, {tokens, key_heads, key_size});
  check_multiple(kDeltaRule, "heads of v", heads, "heads of q", key_heads);
  check_inputs(kDeltaRule, "a", a.a, {tokens, heads});
  check_inputs(kDeltaRule, "b", a.b, {tokens, heads});
  check_parameter(kDeltaRule, "a_log", a.a_log, heads, "heads of v");
  check_parameter(kDeltaRule, "dt_bias", a.dt_bias, heads, "heads of v");
  check_matrices(kDeltaRule, a.requests.states, heads, key_size, a.v.size(2));
  check_requests(kDeltaRule, a.requests, tokens);
}

void check_gated_norm(const GatedNormArguments& a) {
  check(a.x.dim() == 2 || a.x.dim() == 3, kGatedNorm,
        ": x must have 2 or 3 dimensions, but has ", a.x.dim(), ".");
  const int64_t columns = a.x.size(-1);
  check(columns >= 1, kGatedNorm, ": x must have at least one column.");
  for (const auto& [name, tensor] : {std::pair("x", a.x), std::pair("gate", a.gate)}) {
    check_inputs(kGatedNorm, name, tensor, a.x.dim());
  }
  for (int64_t i = 0; i < a.x.dim(); ++i) {
    check(a.gate.size(i) == a.x.size(i), kGatedNorm, ": gate must have the shape of x.");
  }
  if (a.weight) check_parameter(kGatedNorm, "weight", *a.weight, columns, "columns of x");
  check(a.epsilon >= 0.0, kGatedNorm, ": epsilon must not be negative, but is ", a.epsilon, ".");
  check_multiple(kGatedNorm, "columns of x", columns, "of a group", a.group_size);
}

}  // namespace vllm_fork
