// From the sums of a tile to numbers of the result.
#pragma once

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/tickets.cuh"
#include "cuda/product/digit_tiles.cuh"
#include "cuda/product/product_result.cuh"
#include "cuda/product/tile_shape.cuh"
#include "cuda/product/warp_sums.cuh"

namespace vllm_fork {

// The sums of a tile in shared memory, from where they are written in the order of the result. Rows
// are so far apart that the lanes of a warp write to different banks.
template <class Tile>
struct TileSums {
  float values[Tile::kAllRowTiles * kRowsOfTile][Tile::kAllPanels * kOutputs + 4];

  __device__ __forceinline__ void take(const Sums<Tile, float>& sums,
                                       const WarpPlace<Tile>& warp) {
    for_each_sum<Tile>([&](int p, int t, int i) {
      const int row = warp.row_tile(t) * kRowsOfTile + warp.row(i);
      values[row][(warp.panel + p) * kOutputs + warp.output(i)] = sums[p][t][i];
    });
  }
};

// Calls action(index in [rows, outputs], output, sum of the tile) for each result of the tile, each
// in one thread.
template <class Tile, typename Action>
__device__ __forceinline__ void for_each_result(const ProductWork& work,
                                                const TilePlace<Tile>& place,
                                                const TileSums<Tile>& tile, const Action& action) {
  constexpr int kOutputsOfTile = Tile::kAllPanels * kOutputs;
  constexpr int kResults = Tile::kAllRowTiles * kRowsOfTile * kOutputsOfTile;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kResults; i += Tile::kThreads) {
    const int64_t row = int64_t{place.row_tile} * kRowsOfTile + i / kOutputsOfTile;
    const int64_t output = int64_t{place.panel} * kOutputs + i % kOutputsOfTile;
    if (row >= work.rows) return;
    if (output >= work.outputs) continue;
    const float sum = tile.values[i / kOutputsOfTile][i % kOutputsOfTile];
    action(row * work.outputs + output, output, sum);
  }
}

// Leaves the sums of some segments, and adds all if those of the other segments are there.
template <class Tile>
__device__ __forceinline__ void write_partials(const ProductWork& work,
                                               const TilePlace<Tile>& place,
                                               const TileSums<Tile>& tile) {
  const int64_t size = work.rows * work.outputs;
  for_each_result(work, place, tile, [&](int64_t index, int64_t, float sum) {
    work.partials[place.split * size + index] = sum;
  });
  if (!is_last_of(work.splits, work.counters + place.tile)) return;
  for_each_result(work, place, tile, [&](int64_t index, int64_t output, float) {
    const float sum = sum_of_halves(work.partials + index, size, work.splits);
    write_result(work.result, index, sum, output);
  });
}

template <class Tile>
__device__ __forceinline__ void write_sums(const ProductWork& work, const TilePlace<Tile>& place,
                                           const TileSums<Tile>& tile) {
  if (work.splits > 1) return write_partials(work, place, tile);
  for_each_result(work, place, tile, [&](int64_t index, int64_t output, float sum) {
    write_result(work.result, index, sum, output);
  });
}

}  // namespace vllm_fork
