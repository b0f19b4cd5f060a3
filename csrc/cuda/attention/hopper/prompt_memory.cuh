// What the blocks of threads of prompt_attention.cuh keep in shared memory, and where.
#pragma once

#include "cuda/attention/query_piece.cuh"
#include "cuda/primitives/hopper/phase_barrier.cuh"
#include "cuda/primitives/hopper/warpgroup.cuh"

namespace vllm_fork {

constexpr int kGroups = 2;          // warpgroups that attend, each for its own rows
constexpr int kGroupRows = 64;      // 16 of a warp
constexpr int kPromptRows = kGroups * kGroupRows;
constexpr int kAttending = kGroups * kWarpgroup;          // threads
constexpr int kPromptThreads = kAttending + kWarpgroup;   // the last warpgroup loads
constexpr int kPromptStages = 3;                          // blocks of tokens that are loaded
constexpr int kLaneTokens = 16;                           // of a block, whose scores a lane has
constexpr int kBlockTiles = kBlockTokens / kTileTokens;

// Where the lane with `place` among those of the same rows has its scores of a block: tile `tile` and
// its token 4 * place + i are in column 2 * place + i % 2 of product 2 * tile + i / 2. So keys go to
// these columns; then a lane's weights are those that it has to give for the products with values.
__device__ __forceinline__ int column_of(int tile, int token) {
  return kMatrixRows * (2 * tile + token % 4 / 2) + 2 * (token / 4) + token % 2;
}

// Matrices of 8 rows of 16 bytes: `half` behind each other along the bytes of a row, `tile` along the
// rows. Those of keys and values are such that threads which write side by side have memory banks of
// their own.
template <int kRows, int kRowBytes, int kHalfPadding, int kTilePadding>
struct Matrices {
  static constexpr int kHalfStride = kMatrix + kHalfPadding;
  static constexpr int kTileStride = kRowBytes / kMatrixBytes * kHalfStride + kTilePadding;
  uint8_t bytes[kRows / kMatrixRows * kTileStride];

  static __device__ __forceinline__ int place_of(int row, int chunk) {
    return row / kMatrixRows * kTileStride + chunk * kHalfStride + row % kMatrixRows * kMatrixBytes;
  }
  __device__ __forceinline__ uint8_t* at(int row, int chunk) {
    return bytes + place_of(row, chunk);
  }

  // As products take them, from this row and these 16 bytes on: number `index` of such matrices, whose
  // first lie `offset` bytes behind what begins at `sixteens`.
  static __device__ __forceinline__ uint64_t from(unsigned int sixteens, size_t offset, int index,
                                                  int row, int chunk) {
    const auto behind = static_cast<int>(offset + index * sizeof(Matrices)) + place_of(row, chunk);
    return matrices(sixteens + static_cast<unsigned int>(behind / 16), kHalfStride, kTileStride);
  }
};

// The scales of a block's tokens, as they are used.
struct alignas(16) BlockScales {
  float key_units[kBlockTokens];     // NaN if the key or the value is invalid, or not there
  int32_t values[kBlockTokens];      // scales
  float value_units[kBlockTokens];   // 2^(scale - largest)
  float largest_key_unit;            // infinite if one is invalid
  int32_t smallest_value;
  int32_t largest_value;
};

// A block of tokens. Upper digits, then lower ones.
template <int kSize>
struct PromptStage {
  using Keys = Matrices<kBlockTokens, kSize, kMatrixBytes, 0>;
  using Values = Matrices<kSize, kBlockTokens, 0, kMatrixBytes>;
  alignas(128) Keys keys[2];
  Values values[2];
  BlockScales scales;
};

template <int kSize>
struct PromptMemory {
  static constexpr int kValues = kSize / 2;  // of a thread: two rows, two of every 8 elements
  using Queries = Matrices<kGroupRows, kSize, 0, 0>;
  alignas(128) Queries queries[kGroups][2];
  PromptStage<kSize> stages[kPromptStages];
  float totals[kValues][kAttending];  // of the superblocks before
  QueryFacts facts[kPromptRows];
  PhaseBarrier is_full[kPromptStages];
  PhaseBarrier is_empty[kPromptStages];
};

// Which stage the blocks of tokens take, one after the other.
using BlockCursor = StageCursor<kPromptStages>;

}  // namespace vllm_fork
