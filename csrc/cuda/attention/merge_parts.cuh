// The kernel that merges what different blocks of threads have gathered for a query.
//
// Specification: docs/numerics/attention.md, "Merging".
#pragma once

#include "cuda/attention/attention_parts.cuh"

namespace vllm_fork {

// Block (x, y) merges the parts of query x and head y, a thread for each element.
__global__ void __launch_bounds__(kLargestHead)
    merge_parts_kernel(PagedAttention task, int64_t splits, float* parts) {
  const int64_t row = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int32_t* starts = task.query_starts;
  const int64_t d = threadIdx.x;
  if (row >= starts[task.sequences]) return;
  const int64_t sequence =
      sequence_at(row, task.sequences, [starts](int64_t s) { return int64_t{starts[s]}; });
  const int64_t behind = starts[sequence + 1] - row;
  const SeenTokens seen = tokens_seen(task.lengths[sequence] - behind, task.window);
  Gathered total;
  float value = 0.0f;
  bool is_valid = seen.are_valid(task);
  for (int64_t s = seen.first / kSuperblockTokens; s <= seen.last / kSuperblockTokens; ++s) {
    const Part part(parts, task, splits, row, head, s);
    is_valid = is_valid && part.is_valid();
    const Gathered coming = part.gathered();
    if (coming.exponent == kUnseen) continue;
    const Rescaling by = merge(total, coming);
    value = value * by.kept + part.values[d] * by.added;
  }
  if (task.sinks != nullptr) {
    const Sink sink(task.sinks[head]);
    is_valid = is_valid && sink.is_valid;
    value = value * merge(total, sink.gathered).kept + 0.0f;  // -0 becomes 0
  }
  const float sum = is_valid ? total.sum : float_of(kNanBits);
  const int64_t place = (row * task.heads + head) * task.cache.head_size + d;
  write_number(task.result, task.query.format, place, value / sum);
}

}  // namespace vllm_fork
