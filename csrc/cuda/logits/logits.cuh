// Log-softmax, argmax and sampling of rows of logits, each of which one block or several share.
//
// Specification: docs/numerics/operations.md, from "Order of logits" on.
#pragma once

#include "cuda/logits/filter.cuh"
#include "cuda/logits/logits.h"
#include "cuda/logits/row_parts.cuh"
#include "cuda/logits/top_k.cuh"
#include "cuda/primitives/numbers.cuh"
#include "portable/vocabulary.h"

namespace vllm_fork {

// --- argmax and log-softmax --------------------------------------------------------------------

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

// --- sampling ----------------------------------------------------------------------------------

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

int64_t choose_row_parts(const LogitRows& logits, int64_t multiprocessors) {
  if (logits.rows == 0) return 1;
  const int64_t needed = divide_up(logits.count, kMostOfPart);
  const int64_t wanted = divide_up(multiprocessors, logits.rows);
  return needed > wanted ? needed : least(wanted, divide_up(logits.count, kFewestOfPart));
}

cudaError_t launch_portable_log_softmax(const LogitRows& logits, const RowParts& parts,
                                        float* result, cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  return with_number(logits.format, [&](auto number) {
    using Number = decltype(number);
    cudaError_t error = launch_parts(logits, parts, stream, first_of_parts_kernel<Number>);
    if (error != cudaSuccess) return error;
    error = launch_parts(logits, parts, stream, sum_of_parts_kernel<Number>);
    if (error != cudaSuccess) return error;
    return launch_parts(logits, parts, stream, log_softmax_kernel<Number>, result);
  });
}

cudaError_t launch_portable_argmax(const LogitRows& logits, const RowParts& parts, int64_t* result,
                                   cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  const cudaError_t error = with_number(logits.format, [&](auto number) {
    return launch_parts(logits, parts, stream, first_of_parts_kernel<decltype(number)>);
  });
  if (error != cudaSuccess) return error;
  return launch(block_for_each_row(logits), kWarp, 0, stream, argmax_kernel, parts, result);
}

cudaError_t launch_portable_draw(const LogitRows& logits, const RowParts& parts,
                                 const int64_t* seeds, const int64_t* positions, int64_t* result,
                                 cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  const cudaError_t error = with_number(logits.format, [&](auto number) {
    return launch_parts(logits, parts, stream, draw_of_parts_kernel<decltype(number)>, seeds,
                        positions);
  });
  if (error != cudaSuccess) return error;
  return launch(block_for_each_row(logits), kWarp, 0, stream, draw_kernel, parts, result);
}

}  // namespace vllm_fork
