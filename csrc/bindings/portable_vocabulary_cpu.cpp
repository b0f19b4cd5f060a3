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
  const Numbers target(result);
  for_each_row_of(logits, [&](int64_t i, float* row) {
    chosen_isa().operations->log_softmax(row, vocab);
    target.write(i * vocab, row, vocab);
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

std::vector<uint64_t>& ranks_of(const float* row, int64_t count) {
  thread_local std::vector<uint64_t> ranks;
  ranks.resize(count);
  for (int64_t i = 0; i < count; ++i) ranks[i] = rank_of(row[i], i);
  return ranks;
}

// Sorts the first `count` of what is left.
using Position = std::vector<uint64_t>::iterator;

void sort_first(Position begin, Position end, int64_t count) {
  if (begin + count < end) std::nth_element(begin, begin + count, end, std::greater<>());
  std::sort(begin, begin + count, std::greater<>());
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
    std::vector<uint64_t>& ranks = ranks_of(row, vocab);
    sort_first(ranks.begin(), ranks.end(), k);
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

void keep_only(float* row, int64_t count, int64_t index) {
  const float logit = row[index];
  std::fill(row, row + count, kRemoved);
  row[index] = logit;
}

// The rest keeps its logits: first the k of the highest rank, then as many of these as it takes for
// their probabilities to reach top_p of the sum of all.
void keep_first(float* row, const float* probabilities, int64_t count, const Restriction& rule) {
  std::vector<uint64_t>& ranks = ranks_of(row, count);
  int64_t left = count;
  if (rule.top_k > 0 && rule.top_k < count) {
    left = rule.top_k;
    std::nth_element(ranks.begin(), ranks.begin() + left, ranks.end(), std::greater<>());
  }
  if (rule.top_p < 1.0f) {
    double sum = 0.0;
    for (int64_t j = 0; j < left; ++j) sum += probability_count(probabilities[index_of(ranks[j])]);
    const double bound = sum * static_cast<double>(rule.top_p);
    double before = 0.0;
    int64_t kept = 0;
    for (int64_t sorted = 0; kept < left && (kept == 0 || before < bound); ++kept) {
      if (kept == sorted) {  // most often few are enough
        const int64_t more = std::min(left - sorted, std::max<int64_t>(64, 7 * sorted));
        sort_first(ranks.begin() + sorted, ranks.begin() + left, more);
        sorted += more;
      }
      before += probability_count(probabilities[index_of(ranks[kept])]);
    }
    left = kept;
  }
  for (int64_t j = left; j < count; ++j) row[index_of(ranks[j])] = kRemoved;
}

// A row without a largest finite logit stays as it is.
void restrict_row(float* row, float* probabilities, int64_t count, const Restriction& rule) {
  const PortableOperations& operations = *chosen_isa().operations;
  const int64_t best = operations.argmax(row, count);
  if (!std::isfinite(row[best])) return;
  if (rule.temperature == 0.0f) return keep_only(row, count, best);
  operations.divide(row, rule.temperature, count);
  if (!std::isfinite(row[best])) return;
  const bool has_order = (rule.top_k > 0 && rule.top_k < count) || rule.top_p < 1.0f;
  if (rule.min_p == 0.0f && !has_order) return;
  operations.relative_probabilities(row, row[best], probabilities, count);
  for (int64_t i = 0; i < count; ++i) {
    if (probabilities[i] >= rule.min_p) continue;
    row[i] = kRemoved;
    probabilities[i] = 0.0f;
  }
  if (has_order) keep_first(row, probabilities, count, rule);
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
