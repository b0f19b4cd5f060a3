// The CPU implementations of portable_filter and portable_draw.
#include <torch/csrc/stable/library.h>

#include <cmath>
#include <limits>
#include <utility>

#include "bindings/logits/portable_logits.h"
#include "portable/vocabulary.h"

namespace vllm_fork {
namespace {

constexpr const char* kFilter = "portable_filter";

struct Restriction {
  float temperature;
  int64_t top_k;
  float top_p;
  float min_p;
};

constexpr float kRemoved = -std::numeric_limits<float>::infinity();

// The logits of the first `kept` stay; `scratch` has room for as many.
void keep_first(float* row, int64_t count, const std::vector<uint64_t>& ranks, int64_t kept,
                float* scratch) {
  for (int64_t j = 0; j < kept; ++j) scratch[j] = row[index_of(ranks[j])];
  std::fill(row, row + count, kRemoved);
  for (int64_t j = 0; j < kept; ++j) row[index_of(ranks[j])] = scratch[j];
}

// How many of the ranks it takes for their probabilities to reach a bound; one more than there are
// if all do not.
int64_t reaching(const std::vector<uint64_t>& ranks, const float* probabilities, double bound) {
  double before = 0.0;
  int64_t kept = 0;
  for (const uint64_t rank : ranks) {
    if (kept > 0 && before >= bound) return kept;
    before += probability_count(probabilities[index_of(rank)]);
    ++kept;
  }
  return before >= bound ? kept : kept + 1;
}

// Of the first `limit`, those stay that it takes to reach top_p of their probability. Most often
// these are few.
void keep_top_p(float* row, float* probabilities, int64_t count, int64_t limit, float top_p) {
  double sum = 0.0;
  if (limit == count) {
    sum = chosen_isa().operations->sum_of_counts(probabilities, count);
  } else {
    for (const uint64_t rank : first_ranks(row, count, limit)) {
      sum += probability_count(probabilities[index_of(rank)]);
    }
  }
  const double bound = sum * static_cast<double>(top_p);
  for (int64_t tried = std::min<int64_t>(limit, 128);; tried = std::min(limit, 8 * tried)) {
    const std::vector<uint64_t>& ranks = first_ranks(row, count, tried);
    const int64_t kept = reaching(ranks, probabilities, bound);
    if (kept > tried && tried < limit) continue;
    return keep_first(row, count, ranks, std::min(kept, tried), probabilities);
  }
}

void remove_improbable(float* row, float* probabilities, int64_t count, float min_p) {
  for (int64_t i = 0; i < count; ++i) {
    const bool is_kept = probabilities[i] >= min_p;
    row[i] = is_kept ? row[i] : kRemoved;
    probabilities[i] = is_kept ? probabilities[i] : 0.0f;
  }
}

// A row without a largest finite logit stays as it is.
void restrict_row(float* row, float* probabilities, int64_t count, const Restriction& rule) {
  const PortableOperations& operations = *chosen_isa().operations;
  const int64_t best = operations.argmax(row, count);
  if (!std::isfinite(row[best])) return;
  if (rule.temperature == 0.0f) {
    const float logit = row[best];
    std::fill(row, row + count, kRemoved);
    row[best] = logit;
    return;
  }
  operations.divide(row, rule.temperature, count);
  if (!std::isfinite(row[best])) return;
  const int64_t limit = rule.top_k > 0 && rule.top_k < count ? rule.top_k : count;
  if (rule.min_p > 0.0f || rule.top_p < 1.0f) {
    operations.relative_probabilities(row, row[best], probabilities, count);
  }
  if (rule.min_p > 0.0f) remove_improbable(row, probabilities, count, rule.min_p);
  if (rule.top_p < 1.0f) return keep_top_p(row, probabilities, count, limit, rule.top_p);
  if (limit < count) {
    keep_first(row, count, first_ranks(row, count, limit), limit, probabilities);
  }
}

void check_restrictions(const Tensor& temperatures, const Tensor& top_p, const Tensor& min_p) {
  for (int64_t i = 0; i < temperatures.size(0); ++i) {
    const float temperature = temperatures.const_data_ptr<float>()[i];
    check(temperature >= 0.0f && std::isfinite(temperature), kFilter, ": temperatures[", i,
          "] must be finite and not negative, but is ", temperature, ".");
    for (const auto& [name, tensor] : {std::pair("top_p", top_p), std::pair("min_p", min_p)}) {
      const float value = tensor.const_data_ptr<float>()[i];
      check(0.0f <= value && value <= 1.0f, kFilter, ": ", name, "[", i,
            "] must be in 0..1, but is ", value, ".");
    }
  }
}

Tensor portable_filter(Tensor logits, Tensor temperatures, Tensor top_k, Tensor top_p,
                       Tensor min_p) {
  check_filter(logits, temperatures, top_k, top_p, min_p);
  check_restrictions(temperatures, top_p, min_p);
  const int64_t vocab = logits.size(1);
  Tensor result =
      torch::stable::new_empty(logits, {logits.size(0), vocab}, ScalarType::Float);
  const Numbers target(result);
  for_each_row_of(logits, [&](int64_t i, float* row) {
    const Restriction rule{
        temperatures.const_data_ptr<float>()[i], top_k.const_data_ptr<int32_t>()[i],
        top_p.const_data_ptr<float>()[i], min_p.const_data_ptr<float>()[i]};
    restrict_row(row, row + vocab, vocab, rule);
    target.write(i * vocab, row, vocab);
  });
  return result;
}

Tensor portable_draw(Tensor logits, Tensor seeds, Tensor positions) {
  check_draw(logits, seeds, positions);
  const int64_t vocab = logits.size(1);
  Tensor result = torch::stable::new_empty(logits, {logits.size(0)}, ScalarType::Long);
  auto* tokens = result.mutable_data_ptr<int64_t>();
  for_each_row_of(logits, [&](int64_t i, float* row) {
    const PortableOperations& operations = *chosen_isa().operations;
    tokens[i] = -1;
    if (!std::isfinite(row[operations.argmax(row, vocab)])) return;
    operations.add_noise(row, seeds.const_data_ptr<int64_t>()[i],
                         positions.const_data_ptr<int64_t>()[i], vocab);
    tokens[i] = operations.argmax(row, vocab);
  });
  return result;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_filter", TORCH_BOX(&vllm_fork::portable_filter));
  library.impl("portable_draw", TORCH_BOX(&vllm_fork::portable_draw));
}
