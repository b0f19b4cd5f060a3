// Which sums of a tile a lane of a warp has.
#pragma once

#include "cuda/primitives/device.cuh"
#include "cuda/product/digit_tiles.cuh"
#include "cuda/product/tile_shape.cuh"

namespace vllm_fork {

// A warp's part of a tile, and what a lane has of it. With g = lane / 4 and q = lane % 4 these are,
// of each panel and each tile of rows, outputs g and g + 8 of the rows 2 q and 2 q + 1.
template <class Tile>
struct WarpPlace {
  int panel;           // of the tile's
  int first_row_tile;  // of the tile's; warps side by side take turns
  int lane;

  __device__ __forceinline__ WarpPlace() {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    panel = warp / Tile::kRowWarps * Tile::kPanels;
    first_row_tile = warp % Tile::kRowWarps;
    lane = static_cast<int>(threadIdx.x) % kWarp;
  }

  __device__ __forceinline__ int row_tile(int t) const {
    return first_row_tile + t * Tile::kRowWarps;
  }
  __device__ __forceinline__ int output(int i) const { return lane / 4 + i / 2 * 8; }
  __device__ __forceinline__ int row(int i) const { return lane % 4 * 2 + i % 2; }
};

template <class Tile, typename Number>
using Sums = Number[Tile::kPanels][Tile::kRowTiles][4];

// Calls action(panel, row tile) for each of a warp.
template <class Tile, typename Action>
__device__ __forceinline__ void for_each_tile(const Action& action) {
#pragma unroll
  for (int p = 0; p < Tile::kPanels; ++p) {
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) action(p, t);
  }
}

// Calls action(panel, row tile, i) for each sum of a lane.
template <class Tile, typename Action>
__device__ __forceinline__ void for_each_sum(const Action& action) {
  for_each_tile<Tile>([&](int p, int t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) action(p, t, i);
  });
}

}  // namespace vllm_fork
