// The threads that bring the digits of a product to shared memory, some steps ahead of the warpgroups
// that multiply them. Each is alone in its warp and copies a share of every step: to ask for a copy
// takes so long that one thread for all of them would be slower than tensor cores. What it copies is
// the same for a whole warp, as the instruction wants it.
#pragma once

#include "cuda/primitives/hopper/bulk_copy.cuh"
#include "cuda/product/hopper/warpgroup_memory.cuh"

namespace vllm_fork {

// A group of panels or of tiles of rows, of which kBytes are copied at once; or none.
template <int kBytes>
struct CopiedGroup {
  const uint8_t* from;
  bool is_there;

  // Number `group` of `groups`, which have so many pieces each.
  __device__ __forceinline__ CopiedGroup(const uint8_t* first, int64_t pieces, int64_t groups,
                                         int group)
      : from(first + group * pieces * kBytes), is_there(group < groups) {}

  __device__ __forceinline__ int bytes() const { return is_there ? kBytes : 0; }

  // Copies the next ones.
  __device__ __forceinline__ void copy(void* to, PhaseBarrier& barrier) {
    if (is_there) copy_bulk(to, from, kBytes, barrier);
    from += kBytes;
  }

  // Begins to bring the next ones nearer, as many as `pieces`.
  __device__ __forceinline__ void prefetch(int pieces) const {
    if (is_there) prefetch_bulk(from, pieces * kBytes);
  }
};

// What a loader copies for a tile: the digits of step after step, and the scales of block after block.
template <class Tile>
struct TilePieces {
  CopiedGroup<kPanelGroup * kWeightTile> weight;
  CopiedGroup<kPanelGroup * kOutputs> exponents;
  CopiedGroup<Tile::kRowGroup * kRowTile> rows;
  CopiedGroup<Tile::kRowGroup * kRowScales> scales;

  __device__ __forceinline__ TilePieces(const ProductWork& work, const TilePlace<Tile>& place,
                                        int panel_group, int row_group)
      : TilePieces(work, work.weight_tiles, work.row_tiles, place,
                   place.split * work.part_segments, panel_group, row_group) {}

  __device__ __forceinline__ TilePieces(const ProductWork& work, const WeightTiles& own,
                                        const RowTiles& digits, const TilePlace<Tile>& place,
                                        int segment, int panel_group, int row_group)
      : weight(work.weight + own.tile_at(place.panel, segment * work.counts.segment_steps()),
               own.steps, groups(own.panels - place.panel, kPanelGroup, Tile::kPanelGroups),
               panel_group),
        exponents(work.weight + own.exponents_at(place.panel, segment * work.counts.segment_blocks),
                  own.blocks, groups(own.panels - place.panel, kPanelGroup, Tile::kPanelGroups),
                  panel_group),
        rows(work.digits + digits.tile_at(place.row_tile, segment * work.counts.segment_steps()),
             digits.steps, groups(digits.tiles - place.row_tile, Tile::kRowGroup, Tile::kRowGroups),
             row_group),
        scales(work.digits + digits.scales_at(place.row_tile, segment * work.counts.segment_blocks),
               digits.blocks,
               groups(digits.tiles - place.row_tile, Tile::kRowGroup, Tile::kRowGroups),
               row_group) {}

  __device__ __forceinline__ int digit_bytes() const { return weight.bytes() + rows.bytes(); }
  __device__ __forceinline__ int scale_bytes() const { return exponents.bytes() + scales.bytes(); }

 private:
  static __device__ __forceinline__ int64_t groups(int64_t left, int size, int most) {
    return least(left / size, int64_t{most});
  }
};

template <class Tile>
struct WarpgroupLoader {
  using Memory = WarpgroupMemory<Tile>;
  static_assert(Tile::kPanelGroups <= kLoaders && Tile::kRowGroups <= kLoaders);

  const ProductWork& work;
  Memory& memory;
  int panel_group;  // the loader's; those with few panels have rows
  int row_group;
  typename Memory::StepCursor at;
  typename Memory::ScaleCursor at_scales;
  bool is_reused = false;  // the stage
  bool are_scales_reused = false;

  // By all threads of the block.
  __device__ __forceinline__ WarpgroupLoader(const ProductWork& all, Memory& shared)
      : work(all), memory(shared) {
    const int warp = (static_cast<int>(threadIdx.x) - Tile::kMultiplying) / kWarp;
    panel_group = __shfl_sync(kAllLanes, warp, 0);
    row_group = kLoaders - 1 - panel_group;
  }

  // Whether the calling thread is one.
  static __device__ __forceinline__ bool is_one() {
    return threadIdx.x >= Tile::kMultiplying && threadIdx.x % kWarp == 0;
  }

  // What stages have room for of a part's weight, before there are digits of rows.
  __device__ __forceinline__ void prefetch_weight(int part) const {
    const int steps = work.part_segments * work.counts.segment_steps();
    pieces_of(part).weight.prefetch(steps < Tile::kStages ? steps : Tile::kStages);
  }

  __device__ __forceinline__ void load_part(int part) {
    TilePieces<Tile> pieces = pieces_of(part);
    for (int segment = 0; segment < work.part_segments; ++segment) {
      for (int block = 0; block < work.counts.segment_blocks; ++block) {
        const int steps = work.counts.steps_of(block);
        for (int step = 1; step < steps; ++step) load_step(pieces, false);
        load_step(pieces, true);
      }
    }
  }

 private:
  __device__ __forceinline__ TilePieces<Tile> pieces_of(int part) const {
    return TilePieces<Tile>(work, TilePlace<Tile>(work, part), panel_group, row_group);
  }

  // What is expected is said before the first of it comes.
  __device__ __forceinline__ void load_step(TilePieces<Tile>& pieces, bool ends_block) {
    PhaseBarrier& barrier = memory.is_full[at.stage];
    StepDigits<Tile>& to = memory.stages[at.stage];
    if (is_reused) memory.is_empty[at.stage].wait(at.parity ^ 1);
    if (ends_block) {
      load_scales(pieces, barrier);
    } else {
      barrier.arrive_expecting(pieces.digit_bytes());
    }
    pieces.weight.copy(to.weight[panel_group], barrier);
    pieces.rows.copy(to.rows[row_group], barrier);
    at.advance();
    is_reused = is_reused || at.stage == 0;
  }

  __device__ __forceinline__ void load_scales(TilePieces<Tile>& pieces, PhaseBarrier& barrier) {
    ScalesOfBlock<Tile>& to = memory.scales[at_scales.stage];
    if (are_scales_reused) memory.are_used[at_scales.stage].wait(at_scales.parity ^ 1);
    barrier.arrive_expecting(pieces.digit_bytes() + pieces.scale_bytes());
    pieces.exponents.copy(to.weight_exponents[panel_group], barrier);
    pieces.scales.copy(to.rows[row_group], barrier);
    at_scales.advance();
    are_scales_reused = are_scales_reused || at_scales.stage == 0;
  }
};

}  // namespace vllm_fork
