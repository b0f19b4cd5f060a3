// The warp that brings the digits of a product to shared memory, some steps ahead of the warpgroups
// that multiply them.
//
// Digits of a step lie in one piece for each panel of outputs and each tile of rows: a lane starts the
// copies of one of these.
#pragma once

#include "cuda/primitives/bulk_copy.cuh"
#include "cuda/product/warpgroup_memory.cuh"

namespace vllm_fork {

// What a lane copies of a tile: the digits of step after step, and the scales of block after block.
template <class Tile>
struct LanePieces {
  static constexpr int kRowScales = kRowsOfTile * static_cast<int>(sizeof(float));

  const uint8_t* digits;
  const uint8_t* scales;
  bool is_weight;
  bool is_there;
  int index;            // of the panel or the tile of rows
  int bytes_of_step;    // of all lanes
  int bytes_of_scales;

  __device__ __forceinline__ LanePieces(const ProductWork& work, const TilePlace<Tile>& place) {
    static_assert(Tile::kAllPanels + Tile::kRowTiles <= kWarp);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto panels = static_cast<int>(
        least(work.weight_tiles.panels - place.panel, int64_t{Tile::kAllPanels}));
    const auto tiles = static_cast<int>(
        least(work.row_tiles.tiles - place.row_tile, int64_t{Tile::kRowTiles}));
    is_weight = lane < Tile::kAllPanels;
    index = is_weight ? lane : lane - Tile::kAllPanels;
    is_there = index < (is_weight ? panels : tiles);
    bytes_of_step = panels * kWeightTile + tiles * kRowTile;
    bytes_of_scales = panels * kOutputs + tiles * kRowScales;
    const int segment = place.split * work.part_segments;
    const int step = segment * work.counts.segment_steps();
    const int block = segment * work.counts.segment_blocks;
    if (is_weight) {
      digits = work.weight + work.weight_tiles.tile_at(place.panel + index, step);
      scales = work.weight + work.weight_tiles.exponents_at(place.panel + index, block);
    } else {
      digits = work.digits + work.row_tiles.tile_at(place.row_tile + index, step);
      scales = work.digits + work.row_tiles.scales_at(place.row_tile + index, block);
    }
  }

  __device__ __forceinline__ void copy_step(StepDigits<Tile>& to, PhaseBarrier& barrier) {
    const int bytes = is_weight ? kWeightTile : kRowTile;
    if (is_there) copy_bulk(is_weight ? to.weight[index] : to.rows[index], digits, bytes, barrier);
    digits += bytes;
  }

  __device__ __forceinline__ void copy_scales(ScalesOfBlock<Tile>& to, PhaseBarrier& barrier) {
    const int bytes = is_weight ? kOutputs : kRowScales;
    void* own = is_weight ? static_cast<void*>(to.weight_exponents[index]) : to.rows[index];
    if (is_there) copy_bulk(own, scales, bytes, barrier);
    scales += bytes;
  }
};

template <class Tile>
struct WarpgroupLoader {
  using Memory = WarpgroupMemory<Tile>;

  const ProductWork& work;
  Memory& memory;
  typename Memory::StepCursor at;
  typename Memory::ScaleCursor at_scales;
  bool is_reused = false;         // the stage
  bool are_scales_reused = false;

  __device__ __forceinline__ WarpgroupLoader(const ProductWork& all, Memory& shared)
      : work(all), memory(shared) {}

  __device__ __forceinline__ void load_part(int part) {
    LanePieces<Tile> pieces(work, TilePlace<Tile>(work, part));
    for (int segment = 0; segment < work.part_segments; ++segment) {
      for (int block = 0; block < work.counts.segment_blocks; ++block) {
        const int steps = work.counts.steps_of(block);
        for (int step = 1; step < steps; ++step) load_step(pieces, false);
        load_step(pieces, true);
      }
    }
  }

 private:
  // What is expected is said before the first of it comes.
  __device__ __forceinline__ void load_step(LanePieces<Tile>& pieces, bool ends_block) {
    PhaseBarrier& barrier = memory.is_full[at.stage];
    if (is_reused) memory.is_empty[at.stage].wait(at.parity ^ 1);
    if (ends_block && are_scales_reused) {
      memory.are_used[at_scales.stage].wait(at_scales.parity ^ 1);
    }
    if (threadIdx.x % kWarp == 0) {
      barrier.arrive_expecting(pieces.bytes_of_step + (ends_block ? pieces.bytes_of_scales : 0));
    }
    __syncwarp();
    pieces.copy_step(memory.stages[at.stage], barrier);
    if (ends_block) {
      pieces.copy_scales(memory.scales[at_scales.stage], barrier);
      at_scales.advance();
      are_scales_reused = are_scales_reused || at_scales.stage == 0;
    }
    at.advance();
    is_reused = is_reused || at.stage == 0;
  }
};

}  // namespace vllm_fork
