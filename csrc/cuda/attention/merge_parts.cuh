// What different blocks of threads have gathered for a query, merged.
//
// Specification: docs/numerics/attention.md, "Merging".
#pragma once

#include "cuda/attention/attention_parts.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/product/digit_tiles.cuh"

namespace vllm_fork {

// Rows of results, as quantise_rows takes rows: they are merged when they are read, and written,
// too. Those behind the last sequence are zeros, and not written.
struct MergedRows {
  PagedAttention task;
  int64_t splits;
  float* parts;

  __device__ __forceinline__ void read(int64_t row, int64_t channel, int count,
                                       float (&values)[kOctet]) const {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) values[i] = 0.0f;
    const int32_t* starts = task.query_starts;
    if (count <= 0 || row >= starts[task.sequences]) return;
    const int64_t sequence =
        sequence_at(row, task.sequences, [starts](int64_t s) { return int64_t{starts[s]}; });
    const int64_t behind = starts[sequence + 1] - row;
    const SeenTokens seen = tokens_seen(task.lengths[sequence] - behind, task.window);
    const auto start = static_cast<int32_t>(channel);  // and all else that is of a row
    const auto size = static_cast<int32_t>(task.cache.head_size);
#pragma unroll 1
    for (int32_t head = start / size; head * size < start + count; ++head) {
      merge_head(row, head, seen, start - head * size, count, values);
    }
  }

 private:
  // Of the elements first.. of a head, which it may not have all: an octet may be of two heads. Those
  // that it has are zeros before.
  __device__ __forceinline__ void merge_head(int64_t row, int32_t head, const SeenTokens& seen,
                                             int32_t first, int count,
                                             float (&values)[kOctet]) const {
    const auto size = static_cast<int32_t>(task.cache.head_size);
    const int32_t end = count < size - first ? count : size - first;
    const auto is_own = [=](int i) { return i >= -first && i < end; };
    Gathered total;
    bool is_valid = seen.are_valid(task);
#pragma unroll 1
    for (int32_t s = seen.first / kSuperblockTokens; s <= seen.last / kSuperblockTokens; ++s) {
      const Part part(parts, task, splits, row, head, s);
      is_valid = is_valid && part.is_valid();
      const Gathered coming = part.gathered();
      if (coming.exponent == kUnseen) continue;
      const Rescaling by = merge(total, coming);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        if (is_own(i)) values[i] = values[i] * by.kept + part.values[first + i] * by.added;
      }
    }
    if (task.sinks != nullptr) {
      const Sink sink(task.sinks[head]);
      is_valid = is_valid && sink.is_valid;
      const float kept = merge(total, sink.gathered).kept;
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        if (is_own(i)) values[i] = values[i] * kept + 0.0f;  // -0 becomes 0
      }
    }
    const float sum = is_valid ? total.sum : float_of(kNanBits);
    const int64_t start = (row * task.heads + head) * size + first;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      if (!is_own(i)) continue;
      write_number(task.result, task.query.format, start + i, values[i] / sum);
      values[i] = read_number(task.result, task.query.format, start + i);
    }
  }
};

constexpr int kMergeThreads = 128;

// A thread for eight results.
__global__ void __launch_bounds__(kMergeThreads) merge_parts_kernel(MergedRows rows) {
  wait_for_earlier_kernels();
  const int64_t octets = rows.task.heads * rows.task.cache.head_size / kOctet;
  const int64_t index = int64_t{blockIdx.x} * kMergeThreads + threadIdx.x;
  if (index >= rows.task.queries * octets) return;
  float values[kOctet];
  rows.read(index / octets, index % octets * kOctet, kOctet, values);
}

inline cudaError_t merge_parts(const MergedRows& rows, cudaStream_t stream) {
  const int64_t results = rows.task.queries * rows.task.heads * rows.task.cache.head_size;
  const dim3 grid(static_cast<unsigned int>(divide_up(results, kOctet * kMergeThreads)));
  return launch_dependent(grid, kMergeThreads, 0, stream, merge_parts_kernel, rows);
}

}  // namespace vllm_fork
