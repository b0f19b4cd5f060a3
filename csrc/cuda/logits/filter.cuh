// Temperature, min_p, top_k and top_p: which logits of a row stay.
//
// Specification: docs/numerics/operations.md, "Which tokens".
#pragma once

#include "cuda/logits/radix_select.cuh"

namespace vllm_fork {

struct Restriction {
  float temperature;
  int64_t top_k;
  float top_p;
  float min_p;

  __device__ __forceinline__ Restriction(const Restrictions& all, int64_t row)
      : temperature(all.temperatures[row]),
        top_k(all.top_k[row]),
        top_p(all.top_p[row]),
        min_p(all.min_p[row]) {}

  __device__ __forceinline__ bool is_valid() const {
    return temperature >= 0.0f && is_finite(temperature) && top_p >= 0.0f && top_p <= 1.0f &&
           min_p >= 0.0f && min_p <= 1.0f;
  }
};

__device__ __forceinline__ float removed_logit() { return float_of(kSignBit | kInfinityBits); }

// Writes the scaled logits of a part, without those that min_p removes, and begins the search for
// those that top_k and top_p leave.
template <typename Number>
__device__ __forceinline__ void scale_part(const LogitRow<Number>& row, const RowPart& own,
                                           const Restriction& rule, float largest,
                                           RowSelection& selection, int64_t parts, float* z) {
  const bool is_restricted = is_finite(largest);
  const bool has_limit = is_restricted && rule.top_k > 0 && rule.top_k < row.count;
  const bool weighs = is_restricted && rule.top_p < 1.0f;
  BlockBins& bins = block_shared<BlockBins>();
  if (has_limit || weighs) bins.clear();
  own.for_each_in_turn([&](int64_t i) {
    const float scaled = row(i) / rule.temperature;
    const float probability = is_restricted ? exponential(scaled - largest) : 1.0f;
    const bool is_kept = probability >= rule.min_p;
    const float x = is_kept ? scaled : removed_logit();
    z[i] = x;
    if (!(has_limit || weighs)) return;
    const int64_t weight = weighs && is_kept ? probability_units(probability) : 0;
    bins.add(digit_of(radix_key(x), kKeyDigits), weight);
  });
  if (!(has_limit || weighs)) return;
  selection.begin(bins, parts, {has_limit ? rule.top_k : 0, rule.top_p, largest});
}

// Writes what does not need a search, and begins one for the rows that do. The first of each part
// is in place 0.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads, kSelectBlocks)
    scale_kernel(LogitRows logits, RowParts parts, Restrictions restrictions,
                 RowSelection* selections, float* result) {
  const LogitRow<Number> row(logits);
  const RowPart own(row.count, parts);
  const Restriction rule(restrictions, own.row);
  float* z = result + own.row * row.count;
  const uint64_t first = largest_of(FoundRanks(parts, 0, own.row));
  const float largest = number_of_rank(first);
  if (!rule.is_valid()) {
    own.for_each_in_turn([&](int64_t i) { z[i] = float_of(kNanBits); });
  } else if (!is_finite(largest)) {
    own.for_each_in_turn([&](int64_t i) { z[i] = narrow<float>(row(i)); });
  } else if (rule.temperature == 0.0f) {
    const int64_t best = index_of(first);
    own.for_each_in_turn([&](int64_t i) { z[i] = i == best ? row(i) : removed_logit(); });
  } else {
    scale_part(row, own, rule, largest / rule.temperature, selections[own.row], parts.count, z);
  }
}

// Removes what the search has left behind: nothing, where there was none.
__global__ void __launch_bounds__(kRowThreads, kSelectBlocks)
    remove_kernel(LogitRows scaled, RowParts parts, const RowSelection* selections,
                  float* result) {
  const LogitRow<float> row(scaled);
  const RowPart own(row.count, parts);
  const KeySearch search = selections[own.row].search;
  if (search.equal == 0) return;
  float* z = result + own.row * row.count;
  const int64_t end = search.end_of_ties(row, own);
  own.for_each_in_turn([&](int64_t i) {
    if (!search.keeps(row(i), i, end)) z[i] = removed_logit();
  });
}

cudaError_t launch_portable_filter(const LogitRows& logits, const RowParts& parts,
                                   const Restrictions& restrictions, float* result,
                                   void* selection_memory, cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  constexpr int kSearches = 2;  // by number, and by weight
  auto* selections = static_cast<RowSelection*>(selection_memory);
  cudaError_t error = with_number(logits.format, [&](auto number) {
    using Number = decltype(number);
    const cudaError_t failed = launch_parts(logits, parts, stream, first_of_parts_kernel<Number>);
    if (failed != cudaSuccess) return failed;
    return launch_parts(logits, parts, stream, scale_kernel<Number>, restrictions, selections,
                        result);
  });
  const LogitRows scaled{result, Format::kFloat32, logits.rows, logits.count, logits.count};
  for (int i = 0; i < kSearches * (kKeyDigits - 1) && error == cudaSuccess; ++i) {
    error = launch_parts(scaled, parts, stream, find_digit_kernel<float>, selections);
  }
  if (error != cudaSuccess) return error;
  return launch_parts(scaled, parts, stream, remove_kernel, selections, result);
}

}  // namespace vllm_fork
