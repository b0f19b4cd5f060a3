// The CPU implementations of portable_log_softmax, portable_argmax and portable_top_k.
#include "bindings/logits/portable_logits.h"

#include <torch/csrc/stable/library.h>

#include <functional>
#include <limits>
#include <tuple>

namespace vllm_fork {

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

namespace {

Tensor portable_log_softmax(Tensor logits) {
  check_logits("portable_log_softmax", logits);
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
  check_logits("portable_argmax", logits);
  const int64_t vocab = logits.size(1);
  Tensor result = torch::stable::new_empty(logits, {logits.size(0)}, ScalarType::Long);
  auto* indices = result.mutable_data_ptr<int64_t>();
  for_each_row_of(logits, [&](int64_t i, const float* row) {
    indices[i] = chosen_isa().operations->argmax(row, vocab);
  });
  return result;
}

std::tuple<Tensor, Tensor> portable_top_k(Tensor logits, int64_t k) {
  check_top_k(logits, k);
  const int64_t vocab = logits.size(1);
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

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_log_softmax", TORCH_BOX(&vllm_fork::portable_log_softmax));
  library.impl("portable_argmax", TORCH_BOX(&vllm_fork::portable_argmax));
  library.impl("portable_top_k", TORCH_BOX(&vllm_fork::portable_top_k));
}
