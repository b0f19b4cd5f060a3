// From the sums of warpgroups to numbers of the result. Each warp writes those of its 16 outputs,
// and waits for no other one.
#pragma once

#include "cuda/primitives/tickets.cuh"
#include "cuda/product/octets.cuh"
#include "cuda/product/product_result.cuh"
#include "cuda/product/warpgroup_memory.cuh"

namespace vllm_fork {

// Eight results side by side: where they are in [rows, outputs], and how many of them there are.
struct OctetPlace {
  int64_t index;
  int count;
};

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
    read_bias(bias);
    if (work.splits == 1) {
      for_each_octet([&](const OctetPlace& at, float(&octet)[kOctet]) {
        write_results(at, bias, octet);
      });
    } else {
      write_partials(bias);
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
    const int64_t left = work.outputs - output;
    if (left <= 0) return;
#pragma unroll 1
    for (int t = lane / 16; t < Tile::kRowTiles; t += 2) {
      const int64_t row = int64_t{place.row_tile + t} * kRowsOfTile + row_of_tile;
      if (row >= work.rows) return;
      float octet[kOctet];
      read_octet(&values[t][line * kWarp + row_of_tile / 2 * kOctet], kOctet, octet);
      const auto count = static_cast<int>(least(left, int64_t{kOctet}));
      action(OctetPlace{row * work.outputs + output, count}, octet);
    }
  }

  __device__ __forceinline__ void read_bias(float (&bias)[kOctet]) const {
    const ProductResult& result = work.result;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const int64_t output = first_output() + i;
      const bool is_there = result.bias != nullptr && output < work.outputs;
      bias[i] = is_there ? normal_bias(read_number(result.bias, result.bias_format, output)) : 0.0f;
    }
  }

  // Without a bias, that +0 is added changes nothing: no sum is -0.
  __device__ __forceinline__ void write_results(const OctetPlace& at, const float (&bias)[kOctet],
                                                float (&octet)[kOctet]) const {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) octet[i] = octet[i] + bias[i];
    switch (work.result.format) {
      case Format::kFloat32: return write_as<float>(at, octet);
      case Format::kBfloat16: return write_as<Bfloat16>(at, octet);
      case Format::kFloat16: return write_as<Float16>(at, octet);
    }
  }

  template <typename Number>
  __device__ __forceinline__ void write_as(const OctetPlace& at,
                                           const float (&octet)[kOctet]) const {
    Number numbers[kOctet];
#pragma unroll
    for (int i = 0; i < kOctet; ++i) numbers[i] = narrow<Number>(octet[i]);
    write_octet(static_cast<Number*>(work.result.data) + at.index, at.count, numbers);
  }

  // Leaves the sums of some segments, and adds all if those of the other segments are there.
  __device__ __forceinline__ void write_partials(const float (&bias)[kOctet]) const {
    const int64_t size = work.rows * work.outputs;
    for_each_octet([&](const OctetPlace& at, const float(&octet)[kOctet]) {
      write_octet(work.partials + place.split * size + at.index, at.count, octet);
    });
    if (!is_last_warp_of(work.splits, work.counters + place.tile * Tile::kTickets + warp)) return;
    for_each_octet([&](const OctetPlace& at, float(&octet)[kOctet]) {
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        if (i >= at.count) continue;
        octet[i] = sum_of_halves(work.partials + at.index + i, size, work.splits);
      }
      write_results(at, bias, octet);
    });
  }
};

}  // namespace vllm_fork
