// The launcher of attention over a paged cache: plain pointers and sizes, nothing of torch.
#pragma once

#include <cstdint>

#include "cuda/attention/cache.h"
#include "cuda/product/digit_target.h"

namespace vllm_fork {

struct PagedAttention {
  TokenRows query;  // [queries, heads, head_size]
  void* result;     // the same without gaps, in the format of query
  int64_t queries;
  int64_t heads;
  int64_t key_heads;
  CachePages cache;             // at multiples of 16 bytes
  const int32_t* pages;         // [sequences, width]
  const int32_t* query_starts;  // [sequences + 1]
  const int32_t* lengths;       // [sequences]
  int64_t sequences;
  int64_t width;
  float scale;
  float soft_cap;
  int64_t window;
  const float* slopes;  // [heads], or null
  const float* sinks;   // [heads], or null
  bool has_warpgroups;  // whether the GPU can launch prompt_attention.h
};

// How many superblocks of a query get blocks of threads of their own: 1 if it is not worth it. From
// sizes alone, which a captured graph keeps.
int64_t attention_splits(const PagedAttention& task);

// The floats in which the parts of each query and head wait to be merged.
int64_t attention_part_floats(const PagedAttention& task, int64_t splits);

// With splits > 1, `parts` has room for attention_part_floats. The results of a query that sees a
// token in a page that there is not are NaN; those behind the last sequence are not written.
cudaError_t launch_portable_attention(const PagedAttention& task, int64_t splits, float* parts,
                                      cudaStream_t stream);

// The same, and the digits of the results for a product, as rows [queries, heads * head_size].
cudaError_t launch_portable_attention_digits(const PagedAttention& task, int64_t splits,
                                             float* parts, const DigitTarget& target,
                                             cudaStream_t stream);

}  // namespace vllm_fork
