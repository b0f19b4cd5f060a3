// Log-softmax, argmax, top-k and sampling: a block for a row of logits.
//
// Specification: docs/numerics/operations.md, from "Order of logits" on.
#pragma once

#include "../portable/vocabulary.h"
#include "numbers.cuh"
#include "portable_logits.h"
#include "selection.cuh"

namespace vllm_fork {

// The block's row.
template <typename Number>
struct LogitRow {
  const Number* start;
  int64_t count;

  __device__ __forceinline__ explicit LogitRow(const LogitRows& logits)
      : start(static_cast<const Number*>(logits.start) + int64_t{blockIdx.x} * logits.stride),
        count(logits.count) {}

  __device__ __forceinline__ float operator()(int64_t i) const { return widen(start[i]); }
};

// The rank of the first of x(i).
template <typename Values>
__device__ __forceinline__ uint64_t first_rank(const Values& x, int64_t count) {
  uint64_t best = 0;
  for_each_index(count, [&](int64_t i) {
    const uint64_t rank = rank_of(x(i), i);
    best = rank > best ? rank : best;
  });
  return block_largest(best);
}

__device__ __forceinline__ bool is_finite(float x) {
  return magnitude(x) < float_of(kInfinityBits);
}

template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    log_softmax_kernel(LogitRows logits, float* result) {
  const LogitRow<Number> row(logits);
  float* out = result + int64_t{blockIdx.x} * row.count;
  // A zero without its sign, whichever comes first.
  const float largest = number_of_key(ordered_key(row(index_of(first_rank(row, row.count)))));
  if (!is_finite(largest)) {
    for_each_index(row.count, [&](int64_t i) { out[i] = float_of(kNanBits); });
    return;
  }
  int64_t sum = 0;
  for_each_index(row.count,
                 [&](int64_t i) { sum += probability_units(exponential(row(i) - largest)); });
  const auto exact = static_cast<double>(block_sum(sum));
  const float shift = logarithm(static_cast<float>(exact * kProbabilityUnit));
  for_each_index(row.count, [&](int64_t i) { out[i] = row(i) - largest - shift; });
}

template <typename Number>
__global__ void __launch_bounds__(kRowThreads) argmax_kernel(LogitRows logits, int64_t* result) {
  const LogitRow<Number> row(logits);
  const uint64_t best = first_rank(row, row.count);
  if (threadIdx.x == 0) result[blockIdx.x] = index_of(best);
}

// --- top-k -------------------------------------------------------------------------------------

constexpr int64_t kSharedRanks = 4096;  // 32 KiB

inline int64_t power_of_two_from(int64_t k) {
  int64_t size = 1;
  while (size < k) size *= 2;
  return size;
}

int64_t top_k_words(int64_t k) {
  const int64_t size = power_of_two_from(k);
  return size <= kSharedRanks ? 0 : size;
}

// Sorts numbers that all threads of the block see, the largest first: Batcher's bitonic network.
__device__ __forceinline__ void sort_descending(uint64_t* numbers, int64_t size) {
  for (int64_t run = 2; run <= size; run *= 2) {
    for (int64_t distance = run / 2; distance >= 1; distance /= 2) {
      __syncthreads();
      for_each_index(size / 2, [&](int64_t pair) {
        const int64_t i = pair / distance * 2 * distance + pair % distance;
        const uint64_t a = numbers[i];
        const uint64_t b = numbers[i + distance];
        const bool is_descending = (i & run) == 0;
        if ((a < b) != is_descending) return;
        numbers[i] = b;
        numbers[i + distance] = a;
      });
    }
  }
  __syncthreads();
}

// Collects the ranks from `last` on, k of them, and fills up with 0, which no rank is.
template <typename Number>
__device__ __forceinline__ void collect_ranks(const LogitRow<Number>& row, uint64_t last,
                                              int64_t k, int64_t size, uint64_t* ranks) {
  int32_t own = 0;
  for_each_index(row.count, [&](int64_t i) { own += rank_of(row(i), i) >= last ? 1 : 0; });
  int32_t place = block_sum_before(own);
  for_each_index(row.count, [&](int64_t i) {
    const uint64_t rank = rank_of(row(i), i);
    if (rank >= last) ranks[place++] = rank;
  });
  for_each_index(size - k, [&](int64_t i) { ranks[k + i] = 0; });
}

template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    top_k_kernel(LogitRows logits, int64_t k, int64_t size, float* values, int64_t* indices,
                 uint64_t* memory) {
  const LogitRow<Number> row(logits);
  uint64_t* ranks =
      memory == nullptr ? dynamic_shared<uint64_t>() : memory + int64_t{blockIdx.x} * size;
  collect_ranks(row, rank_at(row, row.count, k), k, size, ranks);
  sort_descending(ranks, size);
  for_each_index(k, [&](int64_t j) {
    const int64_t place = int64_t{blockIdx.x} * k + j;
    indices[place] = index_of(ranks[j]);
    values[place] = narrow<float>(row(index_of(ranks[j])));
  });
}

// --- sampling ----------------------------------------------------------------------------------

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

// The weight at which no more tokens are needed for the probability top_p.
__device__ __forceinline__ int64_t bound_of(int64_t sum, float top_p) {
  const double bound = static_cast<double>(sum) * static_cast<double>(top_p);
  const auto below = static_cast<int64_t>(bound);
  const int64_t whole = below + (static_cast<double>(below) < bound ? 1 : 0);
  return whole < 1 ? 1 : whole;  // the first always stays
}

// The rank of the last of `count` scaled logits z that top_k and top_p leave.
__device__ __forceinline__ uint64_t last_kept(const float* z, int64_t count, float largest,
                                              const Restriction& rule) {
  const auto logit = [z](int64_t i) { return z[i]; };
  const bool has_limit = rule.top_k > 0 && rule.top_k < count;
  const uint64_t last = has_limit ? rank_at(logit, count, rule.top_k) : 0;
  if (!(rule.top_p < 1.0f)) return last;
  const auto weight = [z, last, largest](int64_t i) {
    return rank_of(z[i], i) >= last ? probability_units(exponential(z[i] - largest)) : 0;
  };
  int64_t sum = 0;
  for_each_index(count, [&](int64_t i) { sum += weight(i); });
  const int64_t bound = bound_of(block_sum(sum), rule.top_p);
  const uint64_t last_probable = last_rank(logit, weight, count, bound);
  return last_probable > last ? last_probable : last;
}

// Threads write elements of the result that they alone read.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    filter_kernel(LogitRows logits, Restrictions restrictions, float* result) {
  const LogitRow<Number> row(logits);
  const Restriction rule(restrictions, blockIdx.x);
  const float removed = float_of(kSignBit | kInfinityBits);
  float* z = result + int64_t{blockIdx.x} * row.count;
  const int64_t best = index_of(first_rank(row, row.count));
  const bool is_valid = rule.is_valid();
  if (!is_valid || !is_finite(row(best))) {
    for_each_index(row.count, [&](int64_t i) {
      z[i] = is_valid ? narrow<float>(row(i)) : float_of(kNanBits);
    });
    return;
  }
  if (rule.temperature == 0.0f) {
    for_each_index(row.count, [&](int64_t i) { z[i] = i == best ? row(i) : removed; });
    return;
  }
  const float largest = row(best) / rule.temperature;
  const bool is_restricted = is_finite(largest);
  for_each_index(row.count, [&](int64_t i) {
    const float scaled = row(i) / rule.temperature;
    const bool is_kept = !is_restricted || rule.min_p == 0.0f ||
                         exponential(scaled - largest) >= rule.min_p;
    z[i] = is_kept ? scaled : removed;
  });
  if (!is_restricted) return;
  const uint64_t last = last_kept(z, row.count, largest, rule);
  for_each_index(row.count, [&](int64_t i) {
    if (rank_of(z[i], i) < last) z[i] = removed;
  });
}

template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    draw_kernel(LogitRows logits, const int64_t* seeds, const int64_t* positions,
                int64_t* result) {
  const LogitRow<Number> row(logits);
  int64_t token = -1;
  if (is_finite(row(index_of(first_rank(row, row.count))))) {
    const int64_t seed = seeds[blockIdx.x];
    const int64_t position = positions[blockIdx.x];
    uint64_t best = 0;
    for_each_index((row.count + 3) / 4, [&](int64_t group) {
      const NoiseWords noise(group, seed, position);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t i = 4 * group + j;
        if (i >= row.count) continue;
        const uint64_t rank = rank_of(row(i) + gumbel_noise(noise.words[j]), i);
        best = rank > best ? rank : best;
      }
    });
    token = index_of(block_largest(best));
  }
  if (threadIdx.x == 0) result[blockIdx.x] = token;
}

// --- launchers ---------------------------------------------------------------------------------

inline dim3 block_for_each_row(const LogitRows& logits) {
  return dim3(static_cast<unsigned int>(logits.rows));
}

cudaError_t launch_portable_log_softmax(const LogitRows& logits, float* result,
                                        cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  return with_number(logits.format, [&](auto number) {
    return launch(block_for_each_row(logits), kRowThreads, 0, stream,
                  log_softmax_kernel<decltype(number)>, logits, result);
  });
}

cudaError_t launch_portable_argmax(const LogitRows& logits, int64_t* result, cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  return with_number(logits.format, [&](auto number) {
    return launch(block_for_each_row(logits), kRowThreads, 0, stream,
                  argmax_kernel<decltype(number)>, logits, result);
  });
}

cudaError_t launch_portable_top_k(const LogitRows& logits, int64_t k, float* values,
                                  int64_t* indices, uint64_t* memory, cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  const int64_t size = power_of_two_from(k);
  const size_t shared = top_k_words(k) == 0 ? size * sizeof(uint64_t) : 0;
  uint64_t* ranks = top_k_words(k) == 0 ? nullptr : memory;
  return with_number(logits.format, [&](auto number) {
    return launch(block_for_each_row(logits), kRowThreads, shared, stream,
                  top_k_kernel<decltype(number)>, logits, k, size, values, indices, ranks);
  });
}

cudaError_t launch_portable_filter(const LogitRows& logits, const Restrictions& restrictions,
                                   float* result, cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  return with_number(logits.format, [&](auto number) {
    return launch(block_for_each_row(logits), kRowThreads, 0, stream,
                  filter_kernel<decltype(number)>, logits, restrictions, result);
  });
}

cudaError_t launch_portable_draw(const LogitRows& logits, const int64_t* seeds,
                                 const int64_t* positions, int64_t* result, cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  return with_number(logits.format, [&](auto number) {
    return launch(block_for_each_row(logits), kRowThreads, 0, stream,
                  draw_kernel<decltype(number)>, logits, seeds, positions, result);
  });
}

}  // namespace vllm_fork
