// Tiles of a product that warpgroups compute, and what a block of threads keeps of one in shared
// memory.
#pragma once

#include "cuda/primitives/hopper/phase_barrier.cuh"
#include "cuda/primitives/hopper/warpgroup.cuh"
#include "cuda/product/tile_shape.cuh"
#include "cuda/product/tree_sums.cuh"

namespace vllm_fork {

inline constexpr int kLoaders = kWarpgroup / kWarp;

// Two warpgroups multiply 64 outputs each with the same rows; of a third one a thread of each warp
// loads.
template <int kRowTiles_, int kStages_>
struct WarpgroupTile {
  static constexpr int kGroups = 2;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kRowWarps = 1;
  static constexpr int kPanels = 1;         // of a warp
  static constexpr int kStages = kStages_;  // steps in shared memory
  static constexpr int kAllPanels = kGroups * kWarpgroup / kWarp;
  static constexpr int kAllRowTiles = kRowTiles;
  static constexpr int kRowGroup = 1 << kRowGroupBits;
  static constexpr int kPanelGroups = kAllPanels / kPanelGroup;
  static constexpr int kRowGroups = kAllRowTiles / kRowGroup;
  static_assert(kPanelGroups == kGroups && kRowGroups * kRowGroup == kRowTiles);
  static constexpr int kWarps = kGroups * kWarpgroup / kWarp;  // that multiply
  static constexpr int kMultiplying = kGroups * kWarpgroup;    // threads
  static constexpr int kThreads = kMultiplying + kWarpgroup;
  static constexpr int kResident = 1;
  static constexpr int kTickets = kWarps;                // of a tile, see ProductWork
  static constexpr int kSums = kPanels * kRowTiles * 4;  // of a thread
};

// The digits of a step, in groups as in global memory.
template <class Tile>
struct StepDigits {
  alignas(128) uint8_t weight[Tile::kPanelGroups][kPanelGroup * kWeightTile];
  uint8_t rows[Tile::kRowGroups][Tile::kRowGroup * kRowTile];
};

template <class Tile>
struct ScalesOfBlock {
  float rows[Tile::kRowGroups][Tile::kRowGroup][kRowsOfTile];
  uint8_t weight_exponents[Tile::kPanelGroups][kPanelGroup][kOutputs];
};

// Of the levels of pending sums, the last, which is needed least often, is in global memory.
inline constexpr int kLevelsInShared = kPendingLevels - 1;

template <class Tile>
struct WarpgroupMemory {
  static constexpr int kScales = 4;  // blocks

  StepDigits<Tile> stages[Tile::kStages];
  Sums4 pending[kLevelsInShared][Tile::kWarps][Tile::kRowTiles][kWarp];
  ScalesOfBlock<Tile> scales[kScales];
  PhaseBarrier is_full[Tile::kStages];
  PhaseBarrier is_empty[Tile::kStages];
  PhaseBarrier are_used[kScales];  // the scales, which come with the block's last step

  using StepCursor = StageCursor<Tile::kStages>;
  using ScaleCursor = StageCursor<kScales>;

  __device__ __forceinline__ void begin() {
    for (PhaseBarrier& barrier : is_full) barrier.begin(kLoaders);
    for (PhaseBarrier& barrier : is_empty) barrier.begin(Tile::kWarps);
    for (PhaseBarrier& barrier : are_used) barrier.begin(Tile::kWarps);
  }
};

}  // namespace vllm_fork
