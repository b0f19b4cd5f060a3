// From the sums of a tile to numbers of the result.
#pragma once

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/tickets.cuh"
#include "cuda/product/digit_tiles.cuh"
#include "cuda/product/octet_results.cuh"
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

// Calls action(place, octet of sums) for all results of the tile, each in one thread.
template <class Tile, typename Action>
__device__ __forceinline__ void for_each_octet(const ProductWork& work,
                                               const TilePlace<Tile>& place,
                                               const TileSums<Tile>& tile, const Action& action) {
  constexpr int kOctetsOfRow = Tile::kAllPanels * kOutputs / kOctet;
  constexpr int kOctets = Tile::kAllRowTiles * kRowsOfTile * kOctetsOfRow;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kOctets; i += Tile::kThreads) {
    const int own = i % kOctetsOfRow * kOctet;
    const int64_t row = int64_t{place.row_tile} * kRowsOfTile + i / kOctetsOfRow;
    const int64_t output = int64_t{place.panel} * kOutputs + own;
    if (row >= work.rows) return;
    if (output >= work.outputs) continue;
    float octet[kOctet];
    memcpy(octet, __builtin_assume_aligned(&tile.values[i / kOctetsOfRow][own], 16), sizeof octet);
    action(OctetPlace(work, row, output), octet);
  }
}

template <class Tile>
__device__ __forceinline__ void write_sums(const ProductWork& work, const TilePlace<Tile>& place,
                                           const TileSums<Tile>& tile) {
  const auto write = [&](const OctetPlace& at, float(&octet)[kOctet]) {
    float bias[kOctet];
    read_bias(work.result, at, bias);
    write_results(work.result, at, bias, octet);
  };
  if (work.splits == 1) return for_each_octet(work, place, tile, write);
  for_each_octet(work, place, tile, [&](const OctetPlace& at, const float(&octet)[kOctet]) {
    write_partial(work, place.split, at, octet);
  });
  if (!is_last_of(work.splits, work.counters + place.tile)) return;
  for_each_octet(work, place, tile, [&](const OctetPlace& at, float(&octet)[kOctet]) {
    add_partials(work, at, octet);
    write(at, octet);
  });
}

}  // namespace vllm_fork
