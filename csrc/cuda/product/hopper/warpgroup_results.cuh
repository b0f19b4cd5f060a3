// From the sums of warpgroups to numbers of the result. Each warp writes those of its 16 outputs,
// and waits for no other one.
#pragma once

#include "cuda/primitives/tickets.cuh"
#include "cuda/product/octet_results.cuh"
#include "cuda/product/hopper/warpgroup_memory.cuh"

namespace vllm_fork {

template <class Tile>
struct WarpgroupResults {
  const ProductWork& work;
  TilePlace<Tile> place;
  int warp;
  int lane;
  float (*values)[kRowsOfTile * kOutputs];  // of each tile of rows, where pending sums were

  __device__ __forceinline__ WarpgroupResults(const ProductWork& all, int part,
                                              WarpgroupMemory<Tile>& memory)
      : work(all),
        place(all, part),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        values(reinterpret_cast<float(*)[kRowsOfTile * kOutputs]>(memory.pending[0][warp])) {}

  __device__ __forceinline__ void write(const Sums<Tile, float>& sums) {
    __syncwarp();  // no lane needs pending sums any more
    take(sums[0]);
    __syncwarp();
    float bias[kOctet];
    read_bias(work.result, OctetPlace(work, 0, first_output()), bias);
    const auto write = [&](const OctetPlace& at, float(&octet)[kOctet]) {
      write_results(work.result, at, bias, octet);
    };
    if (work.splits == 1) {
      for_each_octet(write);
    } else {
      share(write);
    }
    __syncwarp();  // the next part's pending sums may go where these were
  }

 private:
  // In such an order that the lanes write to different banks: each i of their sums side by side.
  __device__ __forceinline__ void take(const float (&sums)[Tile::kRowTiles][4]) {
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[t][i * kWarp + lane % 4 * kOctet + lane / 4] = sums[t][i];
      }
    }
  }

  __device__ __forceinline__ int64_t first_output() const {
    return int64_t{place.panel + warp} * kOutputs + lane % 2 * kOctet;
  }

  // Calls action(place, octet of sums) for the lane's; half a warp has a tile of rows at a time.
  template <typename Action>
  __device__ __forceinline__ void for_each_octet(const Action& action) const {
    static_assert(Tile::kRowTiles % 2 == 0 && kOutputs == 2 * kOctet);
    const int row_of_tile = lane % 16 / 2;
    const int line = lane % 2 * 2 + row_of_tile % 2;
    const int64_t output = first_output();
    if (output >= work.outputs) return;
#pragma unroll 1
    for (int t = lane / 16; t < Tile::kRowTiles; t += 2) {
      const int64_t row = int64_t{place.row_tile + t} * kRowsOfTile + row_of_tile;
      if (row >= work.rows) return;
      float octet[kOctet];
      const float* own = &values[t][line * kWarp + row_of_tile / 2 * kOctet];
      memcpy(octet, __builtin_assume_aligned(own, 16), sizeof octet);
      action(OctetPlace(work, row, output), octet);
    }
  }

  // Leaves the sums of some segments, and writes those of all if the others are there.
  template <typename Action>
  __device__ __forceinline__ void share(const Action& write) const {
    for_each_octet([&](const OctetPlace& at, const float(&octet)[kOctet]) {
      write_partial(work, place.split, at, octet);
    });
    if (!is_last_warp_of(work.splits, work.counters + place.tile * Tile::kTickets + warp)) return;
    for_each_octet([&](const OctetPlace& at, float(&octet)[kOctet]) {
      add_partials(work, at, octet);
      write(at, octet);
    });
  }
};

}  // namespace vllm_fork
