// Checks of the arguments of deterministic mode's ops other than its products: of types, shapes and
// layouts, which are known wherever tensors are. The CPU's implementations look at values as well.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "bindings/argument_checks.h"
#include "portable/functions.h"

namespace vllm_fork {

// The function of portable_map and portable_gated that has this name.
Function function_named(const char* op, const std::string& name);

void check_map(const Tensor& x);
void check_gated(const Tensor& x);
void check_norm(const Tensor& x, const std::optional<Tensor>& residual,
                const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                double epsilon);
// Of a norm of each head by itself, [rows, heads, size].
void check_norm_heads(const Tensor& x, const Tensor& weight, double epsilon);
void check_rotary_table(const Tensor& frequencies, int64_t positions);
void check_rotate(const Tensor& x, const Tensor& positions, const Tensor& table);
void check_append(const Tensor& keys, const Tensor& values, const Tensor& cache,
                  const Tensor& slots);
void check_rotate_append(const Tensor& query, const Tensor& keys, const Tensor& values,
                         const Tensor& positions, const Tensor& table, const Tensor& cache,
                         const Tensor& slots);

struct AttentionArguments {
  const Tensor& query;
  const Tensor& cache;
  const Tensor& pages;
  const Tensor& query_starts;
  const Tensor& lengths;
  double scale;
  int64_t window;
  double soft_cap;
  const std::optional<Tensor>& slopes;
  const std::optional<Tensor>& sinks;
  const Tensor& result;
};

void check_attention(const AttentionArguments& arguments);

// Of all ops on logits.
void check_logits(const char* op, const Tensor& logits);
void check_top_k(const Tensor& logits, int64_t k);
void check_filter(const Tensor& logits, const Tensor& temperatures, const Tensor& top_k,
                  const Tensor& top_p, const Tensor& min_p);
void check_draw(const Tensor& logits, const Tensor& seeds, const Tensor& positions);

}  // namespace vllm_fork
