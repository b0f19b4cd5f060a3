// The first k of a row of logits in order: a search for the last of them, and a sort of k.
//
// Specification: docs/numerics/operations.md, "Order of logits".
#pragma once

#include "cuda/logits/radix_select.cuh"

namespace vllm_fork {

constexpr int64_t kSharedRanks = 4096;  // 32 KiB

inline int64_t power_of_two_from(int64_t k) {
  int64_t size = 1;
  while (size < k) size *= 2;
  return size;
}

int64_t top_k_words(int64_t k) { return power_of_two_from(k); }

// Calls use(i) for each index below count, those of a thread in ascending order.
template <typename Use>
__device__ __forceinline__ void for_each_index(int64_t count, const Use& use) {
  for (int64_t i = threadIdx.x; i < count; i += kRowThreads) use(i);
}

// Finds the first digit.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads, kSelectBlocks)
    begin_top_k_kernel(LogitRows logits, RowParts parts, int64_t k, RowSelection* selections) {
  const LogitRow<Number> row(logits);
  const RowPart own(row.count, parts);
  BlockBins& bins = block_shared<BlockBins>();
  bins.clear();
  own.for_each_index([&](int64_t i) { bins.add(digit_of(radix_key(row(i)), kKeyDigits), 0); });
  selections[own.row].begin(bins, parts.count, {k, 1.0f, 0.0f});
}

// Writes the ranks of the first k into memory, in no order.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads, kSelectBlocks)
    collect_top_k_kernel(LogitRows logits, RowParts parts, int64_t size,
                         RowSelection* selections, uint64_t* memory) {
  const LogitRow<Number> row(logits);
  const RowPart own(row.count, parts);
  RowSelection& selection = selections[own.row];
  const KeySearch search = selection.search;
  const int64_t end = search.end_of_ties(row, own);
  int32_t kept = 0;
  own.for_each_index([&](int64_t i) { kept += search.keeps(row(i), i, end) ? 1 : 0; });
  const int32_t before = block_sum_before(kept);
  int32_t& start = block_shared<int32_t>();
  if (threadIdx.x == kRowThreads - 1) {
    start = add_atomically(&selection.collected, before + kept);
  }
  __syncthreads();
  uint64_t* place = memory + own.row * size + start + before;
  own.for_each_index([&](int64_t i) {
    if (search.keeps(row(i), i, end)) *place++ = rank_of(row(i), i);
  });
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

// A block for each row. Ranks are sorted in shared memory if they fit; 0, which no rank is, fills
// up to a power of two.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    sort_top_k_kernel(LogitRows logits, int64_t k, int64_t size, uint64_t* memory, float* values,
                      int64_t* indices) {
  const LogitRow<Number> row(logits);
  uint64_t* collected = memory + int64_t{blockIdx.x} * size;
  uint64_t* ranks = size <= kSharedRanks ? dynamic_shared<uint64_t>() : collected;
  for_each_index(size, [&](int64_t j) { ranks[j] = j < k ? collected[j] : 0; });
  sort_descending(ranks, size);
  for_each_index(k, [&](int64_t j) {
    const int64_t place = int64_t{blockIdx.x} * k + j;
    indices[place] = index_of(ranks[j]);
    values[place] = narrow<float>(row(index_of(ranks[j])));
  });
}

cudaError_t launch_portable_top_k(const LogitRows& logits, const RowParts& parts, int64_t k,
                                  float* values, int64_t* indices, uint64_t* memory,
                                  void* selection_memory, cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  auto* selections = static_cast<RowSelection*>(selection_memory);
  const int64_t size = power_of_two_from(k);
  const size_t shared = size <= kSharedRanks ? size * sizeof(uint64_t) : 0;
  return with_number(logits.format, [&](auto number) {
    using Number = decltype(number);
    cudaError_t error =
        launch_parts(logits, parts, stream, begin_top_k_kernel<Number>, k, selections);
    for (int digit = 1; digit < kKeyDigits && error == cudaSuccess; ++digit) {
      error = launch_parts(logits, parts, stream, find_digit_kernel<Number>, selections);
    }
    if (error != cudaSuccess) return error;
    error = launch_parts(logits, parts, stream, collect_top_k_kernel<Number>, size, selections,
                         memory);
    if (error != cudaSuccess) return error;
    return launch(block_for_each_row(logits), kRowThreads, shared, stream,
                  sort_top_k_kernel<Number>, logits, k, size, memory, values, indices);
  });
}

}  // namespace vllm_fork
