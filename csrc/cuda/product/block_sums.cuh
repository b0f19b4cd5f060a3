// The exact sums of a block of input channels: docs/numerics/products.md, section 5.
#pragma once

#include <type_traits>

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/load_matrices.cuh"
#include "cuda/primitives/matrix_instructions.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/product/digit_tiles.cuh"
#include "cuda/product/octets.cuh"
#include "cuda/product/step_operands.cuh"
#include "cuda/product/tile_shape.cuh"
#include "cuda/product/warp_sums.cuh"
#include "cuda/product/warpgroup_instructions.cuh"

namespace vllm_fork {

// A lane's words of both digits of a panel, of the steps of a chunk.
template <class Tile>
using ChunkDigits = uint32_t[Tile::kChunkSteps][kDigits][4];

// What the sums of a block are: integers, in any case. The magnitudes of all its products come to
// no more than this, so neither does the sum of any of them, in any order. Hence float32 is exact
// for a whole block (matrix_instructions.cuh), and a bit is left.
inline constexpr int64_t kLargestHigh = kBlock * 127 * 127;
inline constexpr int64_t kLargestMixed = kBlock * 2 * 127 * 128;
static_assert(kLargestHigh < int64_t{1} << 23 && kLargestMixed < int64_t{1} << 23);

template <class Tile>
using BlockSum = std::conditional_t<Tile::kCores == TensorCores::kBfloat16, float, int32_t>;

// The integers of section 5: the sums of high * high, and of high * low + low * high.
template <class Tile>
struct BlockSums {
  using Sum = BlockSum<Tile>;
  Sums<Tile, Sum> high;
  Sums<Tile, Sum> mixed;

  __device__ __forceinline__ void clear() {
    for_each_sum<Tile>([&](int p, int t, int i) {
      high[p][t][i] = 0;
      mixed[p][t][i] = 0;
    });
  }

  // Adds a chunk. Warpgroups only begin to, and are done with `weight` after finish_chunk.
  __device__ __forceinline__ void begin_chunk(const Stage<Tile>& stage,
                                              const WarpPlace<Tile>& warp,
                                              ChunkDigits<Tile>& weight) {
    if constexpr (Tile::kByWarpgroup) {
      load_weight(stage, warp, weight);
      begin_by_warpgroup(stage, weight);
    } else {
#pragma unroll
      for (int step = 0; step < Tile::kChunkSteps; ++step) add_step(stage, warp, step);
    }
  }

  __device__ __forceinline__ void finish_chunk(ChunkDigits<Tile>& weight) {
    if constexpr (Tile::kByWarpgroup) {
      wait_for_products();
      hold_sums();
#pragma unroll
      for (int i = 0; i < Tile::kChunkSteps * 8; ++i) hold(weight[i / 8][i / 4 % 2][i % 4]);
    }
  }

  static __device__ __forceinline__ void load_weight(const Stage<Tile>& stage,
                                                     const WarpPlace<Tile>& warp,
                                                     ChunkDigits<Tile>& weight) {
#pragma unroll
    for (int step = 0; step < Tile::kChunkSteps; ++step) {
#pragma unroll
      for (int digit = 0; digit < kDigits; ++digit) {
        const Words4 own = stage.weights[warp.panel][step][digit][warp.lane];
#pragma unroll
        for (int i = 0; i < 4; ++i) weight[step][digit][i] = own.words[i];
      }
    }
  }

  // The digits of rows stay in shared memory.
  __device__ __forceinline__ void begin_by_warpgroup(const Stage<Tile>& stage,
                                                     const ChunkDigits<Tile>& weight) {
    static_assert(Tile::kRowWarps == 1 && Tile::kPanels == 1 && Tile::kOutputWarps % 4 == 0);
    constexpr int kTileBytes = static_cast<int>(sizeof stage.rows[0]);
    hold_sums();
    begin_products();
#pragma unroll
    for (int step = 0; step < Tile::kChunkSteps; ++step) {
      const uint64_t highs = row_matrices_at(&stage.rows[0][step][0], kTileBytes);
      const uint64_t lows = row_matrices_at(&stage.rows[0][step][kWarp / 2], kTileBytes);
      multiply_add(high[0], weight[step][0], highs);
      multiply_add(mixed[0], weight[step][1], highs);
      multiply_add(mixed[0], weight[step][0], lows);
    }
    commit_products();
  }

  __device__ __forceinline__ void hold_sums() {
    for_each_sum<Tile>([&](int p, int t, int i) {
      hold(high[p][t][i]);
      hold(mixed[p][t][i]);
    });
  }

  __device__ __forceinline__ void add_step(const Stage<Tile>& stage, const WarpPlace<Tile>& warp,
                                           int step) {
    StepOperand<Sum, 4> weight[Tile::kPanels][kDigits];
#pragma unroll
    for (int p = 0; p < Tile::kPanels; ++p) {
      weight[p][0].take(stage.weights[warp.panel + p][step][0][warp.lane].words);
      weight[p][1].take(stage.weights[warp.panel + p][step][1][warp.lane].words);
    }
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      uint32_t digits[4];
      load_matrices(digits, &stage.rows[warp.row_tile + t][step][warp.lane]);
      StepOperand<Sum, 2> row;
      row.take(digits);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) add(high[p][t], weight[p][0], row);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) add(mixed[p][t], weight[p][1], row);
      row.take(digits + 2);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) add(mixed[p][t], weight[p][0], row);
    }
  }

  static __device__ __forceinline__ void add(Sum (&sums)[4], const StepOperand<Sum, 4>& weight,
                                             const StepOperand<Sum, 2>& row) {
#pragma unroll
    for (int i = 0; i < StepOperand<Sum, 4>::kProducts; ++i) {
      const uint32_t(&w)[4] = weight.words[i];
      multiply_add(sums, Fragments{{w[0], w[1], w[2], w[3]}, {row.words[i][0], row.words[i][1]}});
    }
  }
};

}  // namespace vllm_fork
