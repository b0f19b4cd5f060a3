// Digits of rows times digits of a weight, on tensor cores: docs/numerics/products.md, 5 and 6.
//
// A block of threads computes a tile of the product: some panels of outputs, some tiles of rows. Its
// warps share the tile out; each has its sums in registers. Digits come to shared memory in chunks
// of a few steps, several chunks ahead of the one that is multiplied.
//
// Where there are too few tiles to occupy the GPU, several blocks of threads share one: each takes
// an equal part of the segments, whose sum is a whole subtree of the specification's tree of
// halves. The one that comes last adds these sums; which one that is changes nothing.
#pragma once

#include "../portable/number_types.h"
#include "../portable/product.h"
#include "copy_async.cuh"
#include "device.cuh"
#include "digit_tiles.cuh"
#include "load_matrices.cuh"
#include "matrix_instructions.cuh"
#include "octets.cuh"
#include "product_result.cuh"
#include "registers.cuh"
#include "tickets.cuh"
#include "warpgroup_instructions.cuh"

namespace vllm_fork {

// How a block of threads shares out a tile, and how it comes to shared memory.
template <int kOutputWarps_, int kRowWarps_, int kPanels_, int kRowTiles_, int kChunkSteps_,
          int kStages_, int kResident_, bool kByWarpgroup_ = false>
struct TileShape {
  static constexpr int kOutputWarps = kOutputWarps_;  // side by side over outputs
  static constexpr int kRowWarps = kRowWarps_;        // and over rows
  static constexpr int kPanels = kPanels_;            // of a warp
  static constexpr int kRowTiles = kRowTiles_;        // of a warp
  static constexpr int kChunkSteps = kChunkSteps_;    // that are copied at once
  static constexpr int kStages = kStages_;            // chunks in shared memory
  static constexpr int kResident = kResident_;        // blocks a multiprocessor has registers for
  static constexpr bool kByWarpgroup = kByWarpgroup_;  // whether four warps multiply together
  static constexpr int kAllPanels = kOutputWarps * kPanels;
  static constexpr int kAllRowTiles = kRowWarps * kRowTiles;
  static constexpr int kThreads = kOutputWarps * kRowWarps * kWarp;
  static constexpr int kSums = kPanels * kRowTiles * 4;  // of a thread
};

// A chunk in shared memory. Its scales are there if it ends a block.
template <class Tile>
struct Stage {
  Words4 weights[Tile::kAllPanels][Tile::kChunkSteps][kDigits][kWarp];
  Words4 rows[Tile::kAllRowTiles][Tile::kChunkSteps][kWarp];
  float row_scales[Tile::kAllRowTiles][kRowsOfTile];
  uint8_t weight_exponents[Tile::kAllPanels][kOutputs];
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
  int32_t* counters;      // zeros, one for each tile; not used if splits is 1
  float* pending;         // see PendingSums; not used if each part has one segment
  ProductResult result;
};

// The tiles of a product, in bands of so many tiles over rows as the GPU's cache keeps. In a band the
// tiles of the same outputs come one after the other. So each weight is read once for a band.
inline constexpr int kBand = 16;

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
    const int band = tile / (kBand * work.tiles_over_outputs);
    const int of_band = tile % (kBand * work.tiles_over_outputs);
    const int left = work.tiles_over_rows - band * kBand;
    const int height = left < kBand ? left : kBand;
    row_tile = (band * kBand + of_band % height) * Tile::kAllRowTiles;
    panel = of_band / height * Tile::kAllPanels;
  }
};

// A walk over the steps of some segments, a chunk at a time. No chunk has steps of two blocks.
template <int kChunkSteps>
struct ChunkCursor {
  int block;       // of all
  int step;        // of all
  int of_segment;  // the block, of its segment's
  int done;        // steps of the block before the chunk

  __device__ __forceinline__ ChunkCursor(const StepCounts& counts, int segment)
      : block(segment * counts.segment_blocks),
        step(segment * counts.segment_steps()),
        of_segment(0),
        done(0) {}

  __device__ __forceinline__ int steps(const StepCounts& counts) const {
    const int left = counts.steps_of(of_segment) - done;
    return left < kChunkSteps ? left : kChunkSteps;
  }

  __device__ __forceinline__ bool ends_block(const StepCounts& counts) const {
    return counts.steps_of(of_segment) - done <= kChunkSteps;
  }

  __device__ __forceinline__ bool ends_segment(const StepCounts& counts) const {
    return of_segment + 1 == counts.segment_blocks && ends_block(counts);
  }

  __device__ __forceinline__ void advance(const StepCounts& counts) {
    const int taken = steps(counts);
    const bool is_end = ends_block(counts);
    step += taken;
    done = is_end ? 0 : done + taken;
    block += is_end;
    of_segment += is_end;
    if (of_segment == counts.segment_blocks) of_segment = 0;
  }
};

template <int kChunkSteps>
__device__ __forceinline__ int chunks_of_segment(const StepCounts& counts) {
  constexpr int kOfBlock = kStepsOfBlock / kChunkSteps;
  static_assert(kOfBlock * kChunkSteps == kStepsOfBlock);
  return (counts.segment_blocks - 1) * kOfBlock + (counts.last_steps + kChunkSteps - 1) / kChunkSteps;
}

// A lane's sums of a panel and a tile of rows, moved as one.
struct alignas(16) Sums4 {
  float values[4];
};

inline constexpr int kPendingLevels = 3;
static_assert(1 << kPendingLevels == kMostSegments);

// --- to shared memory ----------------------------------------------------------------------------
// Rows of kPieces pieces of 16 bytes that kThreads threads copy, kRows at most, `stride` bytes apart:
// what a thread has of them.
template <int kThreads, int kRows, int kPieces>
struct RowsOfPieces {
  static constexpr int kAll = kRows * kPieces;
  const uint8_t* from;  // the thread's first piece
  int count;            // rows from the thread's first on

  __device__ __forceinline__ RowsOfPieces(const uint8_t* first, int64_t stride, int64_t rows)
      : from(first + own_row() * stride + own_piece() * sizeof(Words4)),
        count(static_cast<int>(least(rows, kRows)) - own_row()) {}

  static __device__ __forceinline__ int own_row() {
    return static_cast<int>(threadIdx.x) % kAll / kPieces;
  }
  static __device__ __forceinline__ int own_piece() {
    return static_cast<int>(threadIdx.x) % kPieces;
  }

  // Copies the pieces `offset` bytes behind the first ones. In a row only `used` pieces are there,
  // the others become zeros.
  __device__ __forceinline__ void copy(int64_t offset, int64_t stride, int used, void* to) const {
    static_assert(kPieces % kThreads == 0 || kThreads % kPieces == 0);
    auto* own = static_cast<Words4*>(to) + threadIdx.x;
#pragma unroll
    for (int first = 0; first < kAll; first += kThreads) {
      const int row = first / kPieces;
      const int piece = first % kPieces;
      if (row >= count || first + static_cast<int>(threadIdx.x) >= kAll) continue;
      const uint8_t* source = from + offset + row * stride + piece * sizeof(Words4);
      copy_async(own + first, source, own_piece() + piece < used);
    }
  }
};

// What a block of threads copies from.
template <class Tile>
struct TileSource {
  static constexpr int kScaleBytes = kRowsOfTile * static_cast<int>(sizeof(float));
  static constexpr int kScalePieces = kScaleBytes / static_cast<int>(sizeof(Words4));
  static constexpr int kPieces = Tile::kChunkSteps * kWarp;
  RowsOfPieces<Tile::kThreads, Tile::kAllPanels, kPieces * kDigits> weights;
  RowsOfPieces<Tile::kThreads, Tile::kAllPanels, 1> exponents;
  RowsOfPieces<Tile::kThreads, Tile::kAllRowTiles, kPieces> rows;
  RowsOfPieces<Tile::kThreads, Tile::kAllRowTiles, kScalePieces> scales;

  __device__ __forceinline__ TileSource(const ProductWork& work, const TilePlace<Tile>& place)
      : TileSource(work, work.weight_tiles, work.row_tiles, place) {}

  __device__ __forceinline__ TileSource(const ProductWork& work, const WeightTiles& weight,
                                        const RowTiles& digits, const TilePlace<Tile>& place)
      : weights(work.weight + weight.tile_at(place.panel, 0), weight.steps * kWeightTile,
                weight.panels - place.panel),
        exponents(work.weight + weight.exponents_at(place.panel, 0), weight.blocks * kOutputs,
                  weight.panels - place.panel),
        rows(work.digits + digits.tile_at(place.row_tile, 0), digits.steps * kRowTile,
             digits.tiles - place.row_tile),
        scales(work.digits + digits.scales_at(place.row_tile, 0), digits.blocks * kScaleBytes,
               digits.tiles - place.row_tile) {}

  // Steps that a chunk lacks are zeros.
  __device__ __forceinline__ void copy(const ProductWork& work,
                                       const ChunkCursor<Tile::kChunkSteps>& at,
                                       Stage<Tile>& stage) const {
    const int used = at.steps(work.counts) * kWarp;
    weights.copy(int64_t{at.step} * kWeightTile, work.weight_tiles.steps * kWeightTile,
                 used * static_cast<int>(kDigits), stage.weights);
    rows.copy(int64_t{at.step} * kRowTile, work.row_tiles.steps * kRowTile, used, stage.rows);
    if (!at.ends_block(work.counts)) return;
    exponents.copy(int64_t{at.block} * kOutputs, work.weight_tiles.blocks * kOutputs, 1,
                   stage.weight_exponents);
    scales.copy(int64_t{at.block} * kScaleBytes, work.row_tiles.blocks * kScaleBytes, kScalePieces,
                stage.row_scales);
  }
};

// --- sums of a warp ------------------------------------------------------------------------------
// A warp's part of a tile, and what a lane has of it. With g = lane / 4 and q = lane % 4 these are,
// of each panel and each tile of rows, outputs g and g + 8 of the rows 2 q and 2 q + 1.
template <class Tile>
struct WarpPlace {
  int panel;     // of the tile's
  int row_tile;  // of the tile's
  int lane;

  __device__ __forceinline__ WarpPlace() {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    panel = warp / Tile::kRowWarps * Tile::kPanels;
    row_tile = warp % Tile::kRowWarps * Tile::kRowTiles;
    lane = static_cast<int>(threadIdx.x) % kWarp;
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

// A lane's words of both digits of a panel, of the steps of a chunk.
template <class Tile>
using ChunkDigits = uint32_t[Tile::kChunkSteps][kDigits][4];

// The integers of section 5: the sums of high * high, and of high * low + low * high.
template <class Tile>
struct BlockSums {
  Sums<Tile, int32_t> high;
  Sums<Tile, int32_t> mixed;

  __device__ __forceinline__ void clear() {
    for_each_sum<Tile>([&](int p, int t, int i) {
      high[p][t][i] = 0;
      mixed[p][t][i] = 0;
    });
  }

  // Adds a chunk. Warpgroups only begin to, and are done with `weight` after finish_chunk.
  __device__ __forceinline__ void begin_chunk(const Stage<Tile>& stage,
                                              const WarpPlace<Tile>& warp,
                                              ChunkDigits<Tile>& weight) {
    if constexpr (Tile::kByWarpgroup) {
      load_weight(stage, warp, weight);
      begin_by_warpgroup(stage, weight);
    } else {
#pragma unroll
      for (int step = 0; step < Tile::kChunkSteps; ++step) add_step(stage, warp, step);
    }
  }

  __device__ __forceinline__ void finish_chunk(ChunkDigits<Tile>& weight) {
    if constexpr (Tile::kByWarpgroup) {
      wait_for_products();
      hold_sums();
#pragma unroll
      for (int i = 0; i < Tile::kChunkSteps * 8; ++i) hold(weight[i / 8][i / 4 % 2][i % 4]);
    }
  }

  static __device__ __forceinline__ void load_weight(const Stage<Tile>& stage,
                                                     const WarpPlace<Tile>& warp,
                                                     ChunkDigits<Tile>& weight) {
#pragma unroll
    for (int step = 0; step < Tile::kChunkSteps; ++step) {
#pragma unroll
      for (int digit = 0; digit < kDigits; ++digit) {
        const Words4 own = stage.weights[warp.panel][step][digit][warp.lane];
#pragma unroll
        for (int i = 0; i < 4; ++i) weight[step][digit][i] = own.words[i];
      }
    }
  }

  // The digits of rows stay in shared memory.
  __device__ __forceinline__ void begin_by_warpgroup(const Stage<Tile>& stage,
                                                     const ChunkDigits<Tile>& weight) {
    static_assert(Tile::kRowWarps == 1 && Tile::kPanels == 1 && Tile::kOutputWarps % 4 == 0);
    constexpr int kTileBytes = static_cast<int>(sizeof stage.rows[0]);
    hold_sums();
    begin_products();
#pragma unroll
    for (int step = 0; step < Tile::kChunkSteps; ++step) {
      const uint64_t highs = row_matrices_at(&stage.rows[0][step][0], kTileBytes);
      const uint64_t lows = row_matrices_at(&stage.rows[0][step][kWarp / 2], kTileBytes);
      multiply_add(high[0], weight[step][0], highs);
      multiply_add(mixed[0], weight[step][1], highs);
      multiply_add(mixed[0], weight[step][0], lows);
    }
    commit_products();
  }

  __device__ __forceinline__ void hold_sums() {
    for_each_sum<Tile>([&](int p, int t, int i) {
      hold(high[p][t][i]);
      hold(mixed[p][t][i]);
    });
  }

  __device__ __forceinline__ void add_step(const Stage<Tile>& stage, const WarpPlace<Tile>& warp,
                                           int step) {
    Words4 weight[Tile::kPanels][kDigits];
#pragma unroll
    for (int p = 0; p < Tile::kPanels; ++p) {
      weight[p][0] = stage.weights[warp.panel + p][step][0][warp.lane];
      weight[p][1] = stage.weights[warp.panel + p][step][1][warp.lane];
    }
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      uint32_t row[4];
      load_matrices(row, &stage.rows[warp.row_tile + t][step][warp.lane]);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) add(high[p][t], weight[p][0], row);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) add(mixed[p][t], weight[p][1], row);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) add(mixed[p][t], weight[p][0], row + 2);
    }
  }

  static __device__ __forceinline__ void add(int32_t (&sums)[4], const Words4& weight,
                                             const uint32_t* row) {
    const uint32_t* w = weight.words;
    multiply_add(sums, Fragments{{w[0], w[1], w[2], w[3]}, {row[0], row[1]}});
  }
};

// Sums that wait for those of later segments, in global memory: kLevels for each block of threads.
template <class Tile>
struct PendingSums {
  Sums4* own;  // of the calling thread

  __device__ __forceinline__ explicit PendingSums(float* all) {
    constexpr int kOfBlock = kPendingLevels * Tile::kSums * Tile::kThreads;
    own = reinterpret_cast<Sums4*>(all + int64_t{blockIdx.x} * kOfBlock) + threadIdx.x;
  }

  __device__ __forceinline__ Sums4& at(int level, int panel, int row_tile) const {
    const int i = (level * Tile::kPanels + panel) * Tile::kRowTiles + row_tile;
    return own[i * Tile::kThreads];
  }
};

// The float32 sums of section 6. After segment s, as many pending sums are added as s + 1 has
// factors of two. So these are, in the end, the sum of all.
template <class Tile>
struct TreeSums {
  Sums<Tile, float> own;

  __device__ __forceinline__ void clear() {
    for_each_sum<Tile>([&](int p, int t, int i) { own[p][t][i] = 0.0f; });
  }

  __device__ __forceinline__ void add_block(const BlockSums<Tile>& block, const Stage<Tile>& stage,
                                            const WarpPlace<Tile>& warp) {
    for_each_sum<Tile>([&](int p, int t, int i) {
      const int32_t exponent = stage.weight_exponents[warp.panel + p][warp.output(i)];
      const float row_scale = stage.row_scales[warp.row_tile + t][warp.row(i)];
      own[p][t][i] = add_block_sum(own[p][t][i], block.high[p][t][i], block.mixed[p][t][i],
                                   float_of(scale_bits(exponent)), row_scale);
    });
  }

  // Leaves the sum for later if a segment of the same subtree is still to come.
  __device__ __forceinline__ void end_segment(int segment, int segments,
                                              const PendingSums<Tile>& pending) {
    int level = 0;
    for (; segment >> level & 1; ++level) add(pending, level);
    if (segment + 1 == segments) return;
    for_each_tile<Tile>([&](int p, int t) {
      const float(&sums)[4] = own[p][t];
      pending.at(level, p, t) = Sums4{{sums[0], sums[1], sums[2], sums[3]}};
    });
    clear();
  }

  __device__ __forceinline__ void add(const PendingSums<Tile>& pending, int level) {
    for_each_tile<Tile>([&](int p, int t) {
      const Sums4 before = pending.at(level, p, t);
#pragma unroll
      for (int i = 0; i < 4; ++i) own[p][t][i] = before.values[i] + own[p][t][i];
    });
  }
};

// --- results -------------------------------------------------------------------------------------
// The sums of a tile in shared memory, from where they are written in the order of the result. Rows
// are so far apart that the lanes of a warp write to different banks.
template <class Tile>
struct TileSums {
  float values[Tile::kAllRowTiles * kRowsOfTile][Tile::kAllPanels * kOutputs + 4];

  __device__ __forceinline__ void take(const Sums<Tile, float>& sums,
                                       const WarpPlace<Tile>& warp) {
    for_each_sum<Tile>([&](int p, int t, int i) {
      const int row = (warp.row_tile + t) * kRowsOfTile + warp.row(i);
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

template <class Tile>
__device__ __forceinline__ void multiply_part(const ProductWork& work, int part,
                                              Stage<Tile>* stages) {
  using Cursor = ChunkCursor<Tile::kChunkSteps>;
  const TilePlace<Tile> place(work, part);
  const WarpPlace<Tile> warp;
  const StepCounts counts = work.counts;
  const TileSource<Tile> source(work, place);
  const int segments = work.part_segments;
  const int chunks = segments * chunks_of_segment<Tile::kChunkSteps>(counts);
  Cursor ahead(counts, place.split * segments);
  Cursor at = ahead;

  for (int chunk = 0; chunk < Tile::kStages - 1; ++chunk) {
    if (chunk < chunks) {
      source.copy(work, ahead, stages[chunk]);
      ahead.advance(counts);
    }
    commit_copies();
  }

  BlockSums<Tile> block;
  TreeSums<Tile> tree;
  block.clear();
  tree.clear();
  int segment = 0;
  int stage = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for_copies<Tile::kStages - 2>();
    if constexpr (Tile::kByWarpgroup) show_copies();
    __syncthreads();  // the chunk is there for all threads, and none reads the one before any more
    ChunkDigits<Tile> weight;
    block.begin_chunk(stages[stage], warp, weight);
    if (chunk + Tile::kStages - 1 < chunks) {
      const int before = stage == 0 ? Tile::kStages - 1 : stage - 1;
      source.copy(work, ahead, stages[before]);
      ahead.advance(counts);
    }
    commit_copies();
    block.finish_chunk(weight);
    if (at.ends_block(counts)) {
      tree.add_block(block, stages[stage], warp);
      if (at.ends_segment(counts)) {
        tree.end_segment(segment++, segments, PendingSums<Tile>(work.pending));
      }
      block.clear();
    }
    at.advance(counts);
    stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
  }
  __syncthreads();  // the stages are free
  auto& sums = *reinterpret_cast<TileSums<Tile>*>(stages);
  static_assert(sizeof sums <= Tile::kStages * sizeof(Stage<Tile>));
  sums.take(tree.own, warp);
  __syncthreads();
  hold(part);  // so that the place is computed again, and does not take registers all the time
  write_sums(work, TilePlace<Tile>(work, part), sums);
}

// As many blocks of threads as are on the GPU at once share the parts out: so what they need of
// memory for pending sums is bounded.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    multiply_rows_kernel(ProductWork work) {
  if constexpr (Tile::kByWarpgroup && !kHasWarpgroups) {
    stop_kernel();
  } else {
    const int blocks = static_cast<int>(gridDim.x);
    for (int part = static_cast<int>(blockIdx.x); part < work.parts; part += blocks) {
      multiply_part(work, part, dynamic_shared<Stage<Tile>>());
      __syncthreads();  // before shared memory is written anew
    }
  }
}

}  // namespace vllm_fork
