// Log-softmax, argmax, top-k and sampling: one block for a row of logits, or several.
//
// Specification: docs/numerics/operations.md, from "Order of logits" on.
#pragma once

#include "cuda/logits/logits.h"
#include "cuda/logits/row_parts.cuh"
#include "cuda/logits/selection.cuh"
#include "cuda/primitives/numbers.cuh"
#include "portable/vocabulary.h"

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

__device__ __forceinline__ bool is_finite(float x) {
  return magnitude(x) < float_of(kInfinityBits);
}

__device__ __forceinline__ uint64_t higher_rank(uint64_t a, uint64_t b) { return a > b ? a : b; }

// --- argmax and log-softmax --------------------------------------------------------------------

// The first of each part, in place 0.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads) first_of_parts_kernel(LogitRows logits,
                                                                     RowParts parts) {
  const LogitRow<Number> row(logits);
  const RowPart own(row.count, parts);
  uint64_t best = 0;
  own.for_each_index([&](int64_t i) { best = higher_rank(best, rank_of(row(i), i)); });
  FoundRanks(parts, 0, own.row).leave(own.part, block_largest(best));
}

// A warp for each row.
__global__ void __launch_bounds__(kWarp) argmax_kernel(RowParts parts, int64_t* result) {
  const uint64_t best = largest_of(FoundRanks(parts, 0, blockIdx.x));
  if (threadIdx.x == 0) result[blockIdx.x] = index_of(best);
}

// The sum of each part, in place 1; of a row that has one.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads) sum_of_parts_kernel(LogitRows logits,
                                                                   RowParts parts) {
  const LogitRow<Number> row(logits);
  const RowPart own(row.count, parts);
  const float largest = number_of_rank(largest_of(FoundRanks(parts, 0, own.row)));
  if (!is_finite(largest)) return;
  int64_t sum = 0;
  own.for_each_index(
      [&](int64_t i) { sum += probability_units(exponential(row(i) - largest)); });
  FoundSums(parts, 1, own.row).leave(own.part, block_sum(sum));
}

template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    log_softmax_kernel(LogitRows logits, RowParts parts, float* result) {
  const LogitRow<Number> row(logits);
  const RowPart own(row.count, parts);
  float* out = result + own.row * row.count;
  const float largest = number_of_rank(largest_of(FoundRanks(parts, 0, own.row)));
  if (!is_finite(largest)) {
    own.for_each_index([&](int64_t i) { out[i] = float_of(kNanBits); });
    return;
  }
  const auto exact = static_cast<double>(sum_of(FoundSums(parts, 1, own.row)));
  const float shift = logarithm(static_cast<float>(exact * kProbabilityUnit));
  own.for_each_index([&](int64_t i) { out[i] = row(i) - largest - shift; });
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

// The rank of the first of a row.
template <typename Number>
__device__ __forceinline__ uint64_t first_rank(const LogitRow<Number>& row) {
  uint64_t best = 0;
  for_each_index(row.count, [&](int64_t i) { best = higher_rank(best, rank_of(row(i), i)); });
  return block_largest(best);
}

// Threads write elements of the result that they alone read.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    filter_kernel(LogitRows logits, Restrictions restrictions, float* result) {
  const LogitRow<Number> row(logits);
  const Restriction rule(restrictions, blockIdx.x);
  const float removed = float_of(kSignBit | kInfinityBits);
  float* z = result + int64_t{blockIdx.x} * row.count;
  const int64_t best = index_of(first_rank(row));
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

// The first of each part with its noise, in place 0.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    draw_of_parts_kernel(LogitRows logits, RowParts parts, const int64_t* seeds,
                         const int64_t* positions) {
  const LogitRow<Number> row(logits);
  const RowPart own(row.count, parts);
  const int64_t seed = seeds[own.row];
  const int64_t position = positions[own.row];
  uint64_t best = 0;
  for (int64_t start = own.first + 4 * threadIdx.x; start < own.last; start += 4 * kRowThreads) {
    const NoiseWords noise(start / 4, seed, position);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t i = start + j;
      if (i >= own.last) continue;
      best = higher_rank(best, rank_of(row(i) + gumbel_noise(noise.words[j]), i));
    }
  }
  FoundRanks(parts, 0, own.row).leave(own.part, block_largest(best));
}

// A warp for each row. Noise is finite, and nothing beside the largest float32: so what is first
// with noise is finite if the largest logit is.
__global__ void __launch_bounds__(kWarp) draw_kernel(RowParts parts, int64_t* result) {
  const uint64_t best = largest_of(FoundRanks(parts, 0, blockIdx.x));
  if (threadIdx.x == 0) {
    result[blockIdx.x] = is_finite(number_of_rank(best)) ? index_of(best) : -1;
  }
}

// --- launchers ---------------------------------------------------------------------------------

inline dim3 block_for_each_row(const LogitRows& logits) {
  return dim3(static_cast<unsigned int>(logits.rows));
}

inline dim3 block_for_each_part(const LogitRows& logits, const RowParts& parts) {
  return dim3(static_cast<unsigned int>(logits.rows), static_cast<unsigned int>(parts.count));
}

int64_t choose_row_parts(const LogitRows& logits, int64_t multiprocessors) {
  constexpr int64_t kFewest = 2 * kRowThreads;  // logits of a part; of a row there are below 2^19
  if (logits.rows == 0) return 1;
  const int64_t wanted = divide_up(multiprocessors, logits.rows);
  return least(wanted, divide_up(logits.count, kFewest));
}

template <typename Number>
cudaError_t launch_first_of_parts(const LogitRows& logits, const RowParts& parts,
                                  cudaStream_t stream) {
  return launch(block_for_each_part(logits, parts), kRowThreads, 0, stream,
                first_of_parts_kernel<Number>, logits, parts);
}

cudaError_t launch_portable_log_softmax(const LogitRows& logits, const RowParts& parts,
                                        float* result, cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  const dim3 grid = block_for_each_part(logits, parts);
  return with_number(logits.format, [&](auto number) {
    using Number = decltype(number);
    cudaError_t error = launch_first_of_parts<Number>(logits, parts, stream);
    if (error != cudaSuccess) return error;
    error = launch(grid, kRowThreads, 0, stream, sum_of_parts_kernel<Number>, logits, parts);
    if (error != cudaSuccess) return error;
    return launch(grid, kRowThreads, 0, stream, log_softmax_kernel<Number>, logits, parts, result);
  });
}

cudaError_t launch_portable_argmax(const LogitRows& logits, const RowParts& parts, int64_t* result,
                                   cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  const cudaError_t error = with_number(logits.format, [&](auto number) {
    return launch_first_of_parts<decltype(number)>(logits, parts, stream);
  });
  if (error != cudaSuccess) return error;
  return launch(block_for_each_row(logits), kWarp, 0, stream, argmax_kernel, parts, result);
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

cudaError_t launch_portable_draw(const LogitRows& logits, const RowParts& parts,
                                 const int64_t* seeds, const int64_t* positions, int64_t* result,
                                 cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  const cudaError_t error = with_number(logits.format, [&](auto number) {
    return launch(block_for_each_part(logits, parts), kRowThreads, 0, stream,
                  draw_of_parts_kernel<decltype(number)>, logits, parts, seeds, positions);
  });
  if (error != cudaSuccess) return error;
  return launch(block_for_each_row(logits), kWarp, 0, stream, draw_kernel, parts, result);
}

}  // namespace vllm_fork
