// Appending to the cache of portable attention.
//
// Specification: docs/numerics/attention.md, "Rows of integers" and "The cache".
#pragma once

#include "cuda/attention/cache_rows.cuh"

namespace vllm_fork {

constexpr int kAppendWarps = 4;

// A warp writes one row: of a token and a head the key, or the value.
__global__ void __launch_bounds__(kAppendWarps* kWarp) append_kernel(AppendTask task) {
  const int64_t item = int64_t{blockIdx.x} * kAppendWarps + threadIdx.x / kWarp;
  const int64_t token = item / (2 * task.heads);
  if (token >= task.tokens) return;
  const int64_t head = item / 2 % task.heads;
  const bool is_value = item % 2 != 0;
  const int64_t slot = task.slots[token];
  const int64_t page_tokens = task.cache.page_tiles * kTileTokens;
  if (slot < 0 || slot >= task.cache.pages * page_tokens) return;

  const TileLayout layout{task.cache.head_size};
  const TilePlace tile(task.cache, slot / page_tokens, slot % page_tokens / kTileTokens, head);
  const int64_t place = slot % kTileTokens;
  const TokenRows& rows = is_value ? task.values : task.keys;
  const int64_t first = token * rows.row_stride + head * rows.head_stride;
  const RowWords row(rows.start, rows.format, first, layout.size);
  const uint32_t scale = row.scale();
  const float factor = to_integers(scale);
  const int64_t lane = threadIdx.x % kWarp;
  if (lane == 0) {
    tile.scales[(is_value ? kTileTokens : 0) + place] = static_cast<uint8_t>(scale);
  }
#pragma unroll
  for (int w = 0; w < kRowWords; ++w) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t d = 4 * (lane + w * kWarp) + j;
      if (d >= layout.size) continue;
      const int32_t integer = row_integer(row.x[w][j], scale, factor);
      uint8_t* byte =
          tile.digits + (is_value ? layout.value_place(place, d) : layout.key_place(place, d));
      byte[0] = static_cast<uint8_t>(upper_digit(integer));
      byte[layout.digits()] = static_cast<uint8_t>(lower_digit(integer));
    }
  }
}

cudaError_t launch_portable_append(const AppendTask& task, cudaStream_t stream) {
  const int64_t items = task.tokens * task.heads * 2;
  if (items == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned int>((items + kAppendWarps - 1) / kAppendWarps));
  return launch(grid, kAppendWarps * kWarp, 0, stream, append_kernel, task);
}

}  // namespace vllm_fork
