// The cache of portable attention, and the launchers of appending to it: plain pointers and sizes,
// nothing of torch.
#pragma once

#include <cstdint>

#include "cuda/primitives/runtime.h"
#include "cuda/rows/rotary.h"
#include "portable/number_formats.h"

namespace vllm_fork {

// See TileLayout.
struct CachePages {
  uint8_t* start;
  int64_t pages;
  int64_t page_stride;
  int64_t head_stride;
  int64_t page_tiles;
  int64_t head_size;
};

// Rows [tokens, heads, head_size], those of a head without gaps.
struct TokenRows {
  const void* start;
  Format format;
  int64_t row_stride;
  int64_t head_stride;
};

struct AppendTask {
  TokenRows keys;
  TokenRows values;
  CachePages cache;
  const int64_t* slots;  // [tokens]; of one that is not in the cache nothing is written
  int64_t tokens;
  int64_t heads;
};

cudaError_t launch_portable_append(const AppendTask& task, cudaStream_t stream);

// Rotates queries and keys in place, which have the same format and rows, and appends these keys;
// rows behind task.tokens are rotated only.
cudaError_t launch_portable_rotate_append(const RotationTask& queries, const RotationTask& keys,
                                          const AppendTask& task, cudaStream_t stream);

}  // namespace vllm_fork
