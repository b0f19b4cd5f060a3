// Attention over a paged cache of integers: the kernel and its launchers.
//
// The digits of results, for the product that takes them, are made where parts are merged, or by a
// kernel of their own.
#pragma once

#include "cuda/attention/attention_block.cuh"
#include "cuda/attention/merge_parts.cuh"
#include "cuda/attention/hopper/prompt_attention.h"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/product/quantise_rows.cuh"

namespace vllm_fork {

// Block (x, y, z) has piece x of the queries and head y of the keys; with parts, of the superblocks
// those that are z modulo gridDim.z. How many there are, only the lengths of sequences say: for many
// blocks there is nothing to do, and they end before they look at queries.
template <int kTiles, bool kHasParts>
__global__ void __launch_bounds__(kAttentionThreads, Attention<kTiles>::kResident)
    attention_kernel(PagedAttention task, int64_t splits, float* parts) {
  wait_for_earlier_kernels();
  const QueryPiece<kQueries> piece(task, blockIdx.x);
  if (!piece.has(0)) return;
  const SeenTokens seen = piece.seen_by_any(0, kQueries, task);
  const int32_t last = seen.last / kSuperblockTokens;
  int32_t superblock = seen.first / kSuperblockTokens;
  if (kHasParts) {
    const auto blocks = static_cast<int32_t>(gridDim.z);
    const auto own = static_cast<int32_t>(blockIdx.z);
    superblock += (own + blocks - superblock % blocks) % blocks;
    if (superblock > last) return;
    Attention<kTiles> attention(task, piece, seen);
    for (; superblock <= last; superblock += blocks) {
      GatheredTiles<kTiles> gathered;
      attention.add_superblock(superblock, gathered);
      attention.write_part(gathered, parts, splits, superblock);
    }
    attention.laps.tell(0);
    return;
  }
  Attention<kTiles> attention(task, piece, seen);
  TotalTiles<kTiles> total;
  for (; superblock <= last; ++superblock) {
    GatheredTiles<kTiles> gathered;
    attention.add_superblock(superblock, gathered);
    total.add(gathered);
  }
  attention.write_result(total);
  attention.laps.tell(0);
}

// --- launchers ---------------------------------------------------------------------------------

inline int64_t num_pieces(const PagedAttention& task) {
  return task.queries * (task.heads / task.key_heads) / kQueries + task.sequences;
}

inline bool is_for_warpgroups(const PagedAttention& task) {
  return task.has_warpgroups && are_prompts(task);
}

int64_t attention_splits(const PagedAttention& task) {
  if (is_for_warpgroups(task)) return 1;
  constexpr int64_t kEnoughBlocks = 1024;
  constexpr int64_t kMostPartFloats = int64_t{64} << 20;  // 256 MiB
  const int64_t room = task.width * task.cache.page_tiles * kTileTokens;
  // What a window lets the queries of a piece see, wherever it begins.
  const int64_t seen = task.window > 0 ? task.window + kQueries + kSuperblockTokens : room;
  const int64_t tokens = seen < room ? seen : room;
  const int64_t splits = (tokens + kSuperblockTokens - 1) / kSuperblockTokens;
  const bool is_worth_it = splits > 1 && num_pieces(task) * task.key_heads < kEnoughBlocks;
  return is_worth_it && attention_part_floats(task, splits) <= kMostPartFloats ? splits : 1;
}

int64_t attention_part_floats(const PagedAttention& task, int64_t splits) {
  return splits == 1 ? 0 : task.queries * task.heads * splits * (task.cache.head_size + 3);
}

// How many blocks of threads share the superblocks of a piece and head: not one for each if that is
// more than keeps a GPU busy, since most sequences are shorter than their tables have room for.
inline int64_t blocks_of_splits(const PagedAttention& task, int64_t splits) {
  constexpr int64_t kManyBlocks = 4096;
  const int64_t others = num_pieces(task) * task.key_heads;
  const int64_t wanted = (kManyBlocks + others - 1) / others;
  return wanted < splits ? wanted : splits;
}

template <int kTiles>
cudaError_t launch_attention(const PagedAttention& task, int64_t splits, float* parts,
                             cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned int>(num_pieces(task)),
                  static_cast<unsigned int>(task.key_heads),
                  static_cast<unsigned int>(blocks_of_splits(task, splits)));
  const auto kernel =
      splits == 1 ? attention_kernel<kTiles, false> : attention_kernel<kTiles, true>;
  return launch_dependent(grid, kAttentionThreads, Attention<kTiles>::kStagedBytes, stream, kernel,
                          task, splits, parts);
}

// Writes results, or with splits > 1 the parts that are to be merged.
inline cudaError_t attend(const PagedAttention& task, int64_t splits, float* parts,
                          cudaStream_t stream) {
  if (task.queries == 0 || task.sequences == 0) return cudaSuccess;
  if (splits == 1 && is_for_warpgroups(task)) return launch_prompt_attention(task, stream);
  constexpr int64_t kElementsOfTile = kElements * kWarps;
  const int64_t size = task.cache.head_size;
  if (size <= 2 * kElementsOfTile) return launch_attention<2>(task, splits, parts, stream);
  if (size <= 4 * kElementsOfTile) return launch_attention<4>(task, splits, parts, stream);
  return launch_attention<8>(task, splits, parts, stream);
}

cudaError_t launch_portable_attention(const PagedAttention& task, int64_t splits, float* parts,
                                      cudaStream_t stream) {
  const cudaError_t error = attend(task, splits, parts, stream);
  if (error != cudaSuccess || splits == 1 || task.queries == 0) return error;
  return merge_parts(MergedRows{task, splits, parts}, stream);
}

cudaError_t launch_portable_attention_digits(const PagedAttention& task, int64_t splits,
                                             float* parts, const DigitTarget& target,
                                             cudaStream_t stream) {
  const cudaError_t error = attend(task, splits, parts, stream);
  if (error != cudaSuccess || target.rows == 0) return error;
  if (splits > 1) return quantise_rows(target, MergedRows{task, splits, parts}, stream);
  return with_number(task.query.format, [&](auto number) {
    using Number = decltype(number);
    const StoredRows<Number> rows{static_cast<const Number*>(task.result), target.shape.inputs};
    return quantise_rows(target, rows, stream);
  });
}

}  // namespace vllm_fork
