// The thread that brings the digits of a product to shared memory, some steps ahead of the
// warpgroups that multiply them. What it copies is the same for a whole warp, as the instruction
// wants it.
#pragma once

#include "cuda/primitives/bulk_copy.cuh"
#include "cuda/product/warpgroup_memory.cuh"

namespace vllm_fork {

// Groups of panels or of tiles of rows, kGroups at most; of each, kBytes are copied at once.
template <int kGroups, int kBytes>
struct CopiedGroups {
  const uint8_t* from;  // of the first group
  int64_t stride;
  int count;

  __device__ __forceinline__ CopiedGroups(const uint8_t* first, int64_t pieces, int64_t groups)
      : from(first),
        stride(pieces * kBytes),
        count(static_cast<int>(least(groups, int64_t{kGroups}))) {}

  __device__ __forceinline__ int bytes() const { return count * kBytes; }

  // Copies the next ones.
  __device__ __forceinline__ void copy(void* to, PhaseBarrier& barrier) {
    auto* target = static_cast<uint8_t*>(to);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (i < count) copy_bulk(target + i * kBytes, from + i * stride, kBytes, barrier);
    }
    from += kBytes;
  }

  // Begins to bring the next ones nearer, as many as `pieces` of each group.
  __device__ __forceinline__ void prefetch(int pieces) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (i < count) prefetch_bulk(from + i * stride, pieces * kBytes);
    }
  }
};

// What is copied for a tile: the digits of step after step, and the scales of block after block.
template <class Tile>
struct TilePieces {
  CopiedGroups<Tile::kPanelGroups, kPanelGroup * kWeightTile> weight;
  CopiedGroups<Tile::kPanelGroups, kPanelGroup * kOutputs> exponents;
  CopiedGroups<Tile::kRowGroups, Tile::kRowGroup * kRowTile> rows;
  CopiedGroups<Tile::kRowGroups, Tile::kRowGroup * kRowScales> scales;

  __device__ __forceinline__ TilePieces(const ProductWork& work, const TilePlace<Tile>& place)
      : TilePieces(work, work.weight_tiles, work.row_tiles, place,
                   place.split * work.part_segments) {}

  __device__ __forceinline__ TilePieces(const ProductWork& work, const WeightTiles& own,
                                        const RowTiles& digits, const TilePlace<Tile>& place,
                                        int segment)
      : weight(work.weight + own.tile_at(place.panel, segment * work.counts.segment_steps()),
               own.steps, (own.panels - place.panel) / kPanelGroup),
        exponents(work.weight + own.exponents_at(place.panel, segment * work.counts.segment_blocks),
                  own.blocks, (own.panels - place.panel) / kPanelGroup),
        rows(work.digits + digits.tile_at(place.row_tile, segment * work.counts.segment_steps()),
             digits.steps, (digits.tiles - place.row_tile) / Tile::kRowGroup),
        scales(work.digits + digits.scales_at(place.row_tile, segment * work.counts.segment_blocks),
               digits.blocks, (digits.tiles - place.row_tile) / Tile::kRowGroup) {}
};

template <class Tile>
struct WarpgroupLoader {
  using Memory = WarpgroupMemory<Tile>;

  const ProductWork& work;
  Memory& memory;
  typename Memory::StepCursor at;
  typename Memory::ScaleCursor at_scales;
  bool is_reused = false;  // the stage
  bool are_scales_reused = false;

  __device__ __forceinline__ WarpgroupLoader(const ProductWork& all, Memory& shared)
      : work(all), memory(shared) {}

  // What stages have room for of a part's weight, before there are digits of rows.
  __device__ __forceinline__ void prefetch_weight(int part) const {
    const TilePieces<Tile> pieces(work, TilePlace<Tile>(work, part));
    const int steps = work.part_segments * work.counts.segment_steps();
    pieces.weight.prefetch(steps < Tile::kStages ? steps : Tile::kStages);
  }

  __device__ __forceinline__ void load_part(int part) {
    TilePieces<Tile> pieces(work, TilePlace<Tile>(work, part));
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
  __device__ __forceinline__ void load_step(TilePieces<Tile>& pieces, bool ends_block) {
    PhaseBarrier& barrier = memory.is_full[at.stage];
    StepDigits<Tile>& to = memory.stages[at.stage];
    if (is_reused) memory.is_empty[at.stage].wait(at.parity ^ 1);
    if (ends_block) {
      load_scales(pieces, barrier);
    } else {
      barrier.arrive_expecting(pieces.weight.bytes() + pieces.rows.bytes());
    }
    pieces.weight.copy(to.weight, barrier);
    pieces.rows.copy(to.rows, barrier);
    at.advance();
    is_reused = is_reused || at.stage == 0;
  }

  __device__ __forceinline__ void load_scales(TilePieces<Tile>& pieces, PhaseBarrier& barrier) {
    ScalesOfBlock<Tile>& to = memory.scales[at_scales.stage];
    if (are_scales_reused) memory.are_used[at_scales.stage].wait(at_scales.parity ^ 1);
    barrier.arrive_expecting(pieces.weight.bytes() + pieces.rows.bytes() +
                             pieces.exponents.bytes() + pieces.scales.bytes());
    pieces.exponents.copy(to.weight_exponents, barrier);
    pieces.scales.copy(to.rows, barrier);
    at_scales.advance();
    are_scales_reused = are_scales_reused || at_scales.stage == 0;
  }
};

}  // namespace vllm_fork
