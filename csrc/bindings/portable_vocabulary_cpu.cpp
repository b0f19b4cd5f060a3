// The CPU implementations of portable_log_softmax, portable_argmax, portable_top_k,
// portable_filter and portable_draw.
#include <torch/csrc/stable/library.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "../portable/ordered_key.h"
#include "../portable/vocabulary.h"
#include "portable_rows.h"

namespace vllm_fork {
namespace {

constexpr const char* kLogSoftmax = "portable_log_softmax";
constexpr const char* kArgmax = "portable_argmax";
constexpr const char* kTopK = "portable_top_k";
constexpr const char* kFilter = "portable_filter";
constexpr const char* kDraw = "portable_draw";
constexpr int64_t kLargestVocabulary = 1 << 19;  // sums of as many probabilities are exact

void check_logits(const char* op, const Tensor& logits) {
  check_portable_type(op, "logits", logits);
  check_dim(op, "logits", logits, 2);
  check(logits.size(1) <= 1 || logits.stride(1) == 1, op,
        ": the last dimension of logits must be contiguous.");
  check(0 < logits.size(1) && logits.size(1) < kLargestVocabulary, op,
        ": logits must have 1..", kLargestVocabulary - 1, " columns, but have ", logits.size(1),
        ".");
}

// Calls work(i, row) with each row of the logits as float32.
template <typename Work>
void for_each_row_of(const Tensor& logits, const Work& work) {
  const Numbers source(logits);
  const int64_t vocab = logits.size(1);
  const int64_t stride = logits.stride(0);
  for_each_row(logits.size(0), vocab, [&](int64_t i) {
    float* row = scratch_floats(2 * vocab);
    source.read(i * stride, row, vocab);
    work(i, row);
  });
}

Tensor portable_log_softmax(Tensor logits) {
  check_logits(kLogSoftmax, logits);
  const int64_t vocab = logits.size(1);
  Tensor result =
      torch::stable::new_empty(logits, {logits.size(0), vocab}, ScalarType::Float);
  const Numbers source(logits);
  auto* rows = result.mutable_data_ptr<float>();
  for_each_row(logits.size(0), vocab, [&](int64_t i) {
    source.read(i * logits.stride(0), rows + i * vocab, vocab);
    chosen_isa().operations->log_softmax(rows + i * vocab, vocab);
  });
  return result;
}

Tensor portable_argmax(Tensor logits) {
  check_logits(kArgmax, logits);
  const int64_t vocab = logits.size(1);
  Tensor result = torch::stable::new_empty(logits, {logits.size(0)}, ScalarType::Long);
  auto* indices = result.mutable_data_ptr<int64_t>();
  for_each_row_of(logits, [&](int64_t i, const float* row) {
    indices[i] = chosen_isa().operations->argmax(row, vocab);
  });
  return result;
}

// A logit and its index as one number: larger logits first, of equal ones the lower index.
uint64_t rank_of(float logit, int64_t index) {
  const uint32_t key = static_cast<uint32_t>(ordered_key(logit)) ^ kSignBit;
  return static_cast<uint64_t>(key) << 32 | (0xffffffffu - static_cast<uint32_t>(index));
}

int64_t index_of(uint64_t rank) { return 0xffffffffu - static_cast<uint32_t>(rank); }

// The first `count` of a row, in order.
//
// Of groups of numbers, as many as are asked for have a largest one that is at least the bound, so
// that no number below it is among the first: few groups are looked at.
const std::vector<uint64_t>& first_ranks(const float* row, int64_t size, int64_t count) {
  thread_local std::vector<int32_t> keys;
  thread_local std::vector<int32_t> bounds;
  thread_local std::vector<uint64_t> ranks;
  const int64_t groups = (size + kKeysAtOnce - 1) / kKeysAtOnce;
  keys.resize(groups);
  chosen_isa().operations->largest_keys(row, size, keys.data());
  int32_t bound = std::numeric_limits<int32_t>::min();
  if (count <= groups) {
    bounds = keys;
    std::nth_element(bounds.begin(), bounds.begin() + count - 1, bounds.end(), std::greater<>());
    bound = bounds[count - 1];
  }
  ranks.clear();
  for (int64_t group = 0; group < groups; ++group) {
    if (keys[group] < bound) continue;
    const int64_t end = std::min(size, (group + 1) * kKeysAtOnce);
    for (int64_t i = group * kKeysAtOnce; i < end; ++i) {
      if (ordered_key(row[i]) >= bound) ranks.push_back(rank_of(row[i], i));
    }
  }
  const auto last = ranks.begin() + count;
  if (last < ranks.end()) std::nth_element(ranks.begin(), last, ranks.end(), std::greater<>());
  ranks.resize(count);
  std::sort(ranks.begin(), ranks.end(), std::greater<>());
  return ranks;
}

std::tuple<Tensor, Tensor> portable_top_k(Tensor logits, int64_t k) {
  check_logits(kTopK, logits);
  const int64_t vocab = logits.size(1);
  check(1 <= k && k <= vocab, kTopK, ": k must be in 1..", vocab, ", but is ", k, ".");
  Tensor values = torch::stable::new_empty(logits, {logits.size(0), k}, ScalarType::Float);
  Tensor indices = torch::stable::new_empty(logits, {logits.size(0), k}, ScalarType::Long);
  const Numbers target(values);
  auto* places = indices.mutable_data_ptr<int64_t>();
  for_each_row_of(logits, [&](int64_t i, float* row) {
    const std::vector<uint64_t>& ranks = first_ranks(row, vocab, k);
    float* chosen = row + vocab;
    for (int64_t j = 0; j < k; ++j) {
      places[i * k + j] = index_of(ranks[j]);
      chosen[j] = row[index_of(ranks[j])];
    }
    target.write(i * k, chosen, k);
  });
  return {values, indices};
}

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

void check_filter(const Tensor& logits, const Tensor& temperatures, const Tensor& top_k,
                  const Tensor& top_p, const Tensor& min_p) {
  check_logits(kFilter, logits);
  const int64_t rows = logits.size(0);
  constexpr const char* kRows = "rows of logits";
  check_entries(kFilter, "temperatures", temperatures, ScalarType::Float, rows, kRows);
  check_entries(kFilter, "top_k", top_k, ScalarType::Int, rows, kRows);
  check_entries(kFilter, "top_p", top_p, ScalarType::Float, rows, kRows);
  check_entries(kFilter, "min_p", min_p, ScalarType::Float, rows, kRows);
  for (int64_t i = 0; i < rows; ++i) {
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
  check_logits(kDraw, logits);
  check_entries(kDraw, "seeds", seeds, ScalarType::Long, logits.size(0), "rows of logits");
  check_entries(kDraw, "positions", positions, ScalarType::Long, logits.size(0), "rows of logits");
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
  library.impl("portable_log_softmax", TORCH_BOX(&vllm_fork::portable_log_softmax));
  library.impl("portable_argmax", TORCH_BOX(&vllm_fork::portable_argmax));
  library.impl("portable_top_k", TORCH_BOX(&vllm_fork::portable_top_k));
  library.impl("portable_filter", TORCH_BOX(&vllm_fork::portable_filter));
  library.impl("portable_draw", TORCH_BOX(&vllm_fork::portable_draw));
}
