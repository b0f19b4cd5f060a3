// Appending to the cache of portable attention, also of keys that are rotated first.
//
// Specification: docs/numerics/attention.md, "Rows of integers" and "The cache"; operations.md,
// "Rotary embedding".
#pragma once

#include "cuda/attention/cache_rows.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/rows/rotation.cuh"

namespace vllm_fork {

constexpr int kAppendWarps = 4;
constexpr int kAppendBlocks = 8;  // of a multiprocessor: with registers enough for all

// Writes one row, by a warp: of a token and a head the key, or the value.
__device__ __forceinline__ void append_row(const AppendTask& task, int64_t token, int64_t head,
                                           bool is_value) {
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

// A warp for each row.
__global__ void __launch_bounds__(kAppendWarps* kWarp) append_kernel(AppendTask task) {
  wait_for_earlier_kernels();
  const int64_t item = int64_t{blockIdx.x} * kAppendWarps + threadIdx.x / kWarp;
  const int64_t token = item / (2 * task.heads);
  if (token >= task.tokens) return;
  append_row(task, token, item / 2 % task.heads, item % 2 != 0);
}

// By a warp.
template <typename Number>
__device__ __forceinline__ void rotate_head(const RotationTask& task, int64_t token,
                                            int64_t head) {
  for (int64_t pair = threadIdx.x % kWarp; pair < task.half; pair += kWarp) {
    rotate_in_place<Number>(task, token, head, pair);
  }
}

// Block (x, y) handles token x, and y counts pieces of its heads: a warp for each, first those of
// queries, then of keys, then of values. A warp sees the key that it has rotated.
template <typename Number>
__global__ void __launch_bounds__(kAppendWarps* kWarp, kAppendBlocks)
    append_rotated_kernel(RotationTask queries, RotationTask keys, AppendTask task) {
  wait_for_earlier_kernels();
  const int64_t token = blockIdx.x;
  const int64_t place = int64_t{blockIdx.y} * kAppendWarps + threadIdx.x / kWarp;
  const int64_t rotated = queries.heads + keys.heads;
  if (place >= rotated + task.heads) return;
  const bool is_query = place < queries.heads;
  const bool is_value = place >= rotated;
  const int64_t head = place - (is_query ? 0 : is_value ? rotated : queries.heads);
  if (is_query) rotate_head<Number>(queries, token, head);
  if (!is_query && !is_value) rotate_head<Number>(keys, token, head);
  __syncwarp();
  if (!is_query && token < task.tokens) append_row(task, token, head, is_value);
}

inline unsigned int blocks_of_warps(int64_t warps) {
  return static_cast<unsigned int>((warps + kAppendWarps - 1) / kAppendWarps);
}

cudaError_t launch_portable_append(const AppendTask& task, cudaStream_t stream) {
  const int64_t rows = task.tokens * task.heads * 2;
  if (rows == 0) return cudaSuccess;
  return launch_dependent(dim3(blocks_of_warps(rows)), kAppendWarps * kWarp, 0, stream,
                          append_kernel, task);
}

cudaError_t launch_portable_rotate_append(const RotationTask& queries, const RotationTask& keys,
                                          const AppendTask& task, cudaStream_t stream) {
  const int64_t heads = queries.heads + keys.heads + task.heads;
  if (queries.rows == 0 || heads == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned int>(queries.rows), blocks_of_warps(heads));
  return with_number(queries.format, [&](auto number) {
    return launch_dependent(grid, kAppendWarps * kWarp, 0, stream,
                            append_rotated_kernel<decltype(number)>, queries, keys, task);
  });
}

}  // namespace vllm_fork
