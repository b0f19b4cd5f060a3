// Tiles of a product: how large they are, and which of them a block of threads computes.
#pragma once

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/tensor_cores.h"
#include "cuda/product/digit_tiles.cuh"
#include "cuda/product/octets.cuh"
#include "cuda/product/product.h"

namespace vllm_fork {

// How a block of threads shares out a tile, and how it comes to shared memory. kIsOfMany: whether
// there are more rows than kFewRows.
template <int kOutputWarps_, int kRowWarps_, int kPanels_, int kRowTiles_, int kChunkSteps_,
          int kStages_, int kResident_, bool kIsOfMany, TensorCores kCores_>
struct TileShape {
  static constexpr int kOutputWarps = kOutputWarps_;  // side by side over outputs
  static constexpr int kRowWarps = kRowWarps_;        // and over rows
  static constexpr int kPanels = kPanels_;            // of a warp
  static constexpr int kRowTiles = kRowTiles_;        // of a warp
  static constexpr int kChunkSteps = kChunkSteps_;    // that are copied at once
  static constexpr int kStages = kStages_;            // chunks in shared memory
  static constexpr int kResident = kResident_;        // blocks a multiprocessor has registers for
  static constexpr TensorCores kCores = kCores_;
  static constexpr int kAllPanels = kOutputWarps * kPanels;
  static constexpr int kAllRowTiles = kRowWarps * kRowTiles;
  static constexpr int kRowGroup = kIsOfMany ? 1 << kRowGroupBits : 1;
  static constexpr int kPanelGroups = kAllPanels / kPanelGroup;
  static constexpr int kRowGroups = kAllRowTiles / kRowGroup;
  static_assert(kAllPanels % kPanelGroup == 0 && kAllRowTiles % kRowGroup == 0);
  static constexpr int kThreads = kOutputWarps * kRowWarps * kWarp;
  static constexpr int kTickets = 1;  // of a tile, see ProductWork
  static constexpr int kSums = kPanels * kRowTiles * 4;  // of a thread
  static constexpr int kUnrolledSteps = kSums < 48 ? kChunkSteps : 1;  // as registers allow it
};

// A chunk in shared memory, in groups as in global memory. Its scales are there if it ends a block.
template <class Tile>
struct Stage {
  Words4 weights[Tile::kPanelGroups][Tile::kChunkSteps][kPanelGroup][2][kWarp];
  Words4 rows[Tile::kRowGroups][Tile::kChunkSteps][Tile::kRowGroup][kWarp];
  float row_scales[Tile::kAllRowTiles][kRowsOfTile];
  uint8_t weight_exponents[Tile::kAllPanels][kOutputs];

  // What a lane gives the address of for load_matrices, which then are in multiply_add's order:
  // both eights of outputs of the first half of the channels, then of the second.
  __device__ __forceinline__ const void* weight_line(int panel, int step, int digit,
                                                     int lane) const {
    const int matrix = digit * 2 + lane / 16;
    const auto& tile = weights[panel / kPanelGroup][step][panel % kPanelGroup];
    return &tile[lane / 8 % 2][matrix * kRowsOfTile + lane % 8];
  }

  // The same of rows: both halves of the channels of the upper digit, then of the lower one.
  __device__ __forceinline__ const void* row_line(int tile, int step, int lane) const {
    return &rows[tile / Tile::kRowGroup][step][tile % Tile::kRowGroup][lane];
  }
};

// What all blocks of threads are given; the host has made the divisions.
struct ProductWork {
  StepCounts counts;
  WeightTiles weight_tiles;
  RowTiles row_tiles;
  int64_t rows;
  int64_t outputs;
  int tiles_over_rows;
  int tiles_over_outputs;
  int splits;         // of the segments; divides them
  int part_segments;  // of each split
  int parts;          // tiles times splits
  const uint8_t* weight;
  const uint8_t* digits;
  float* partials;        // [splits, rows, outputs]; not used if splits is 1
  int32_t* counters;      // zeros, Tile::kTickets for each tile; not used if splits is 1
  float* pending;         // see PendingSums and PendingOfLane; not used if none is left there
  ProductResult result;
};

// The tiles of a product. Those of the same outputs come one after the other, so that the weight is
// read from memory once.
template <class Tile>
struct TileGrid {
  int64_t over_rows;
  int64_t over_outputs;

  TileGrid(const ProductShape& shape, int64_t rows)
      : over_rows(divide_up(rows, Tile::kAllRowTiles * kRowsOfTile)),
        over_outputs(divide_up(shape.outputs, Tile::kAllPanels * kOutputs)) {}

  int64_t tiles() const { return over_rows * over_outputs; }
};

// One of the parts of a product that blocks of threads take: a tile, and of which segments.
template <class Tile>
struct TilePlace {
  int tile;
  int row_tile;  // the first
  int panel;     // the first
  int split;

  __device__ __forceinline__ TilePlace(const ProductWork& work, int part) {
    const int tiles = work.tiles_over_rows * work.tiles_over_outputs;
    tile = part % tiles;
    split = part / tiles;
    row_tile = tile % work.tiles_over_rows * Tile::kAllRowTiles;
    panel = tile / work.tiles_over_rows * Tile::kAllPanels;
  }
};

}  // namespace vllm_fork
