// How digits come to shared memory, several chunks ahead of the one that is multiplied.
#pragma once

#include "cuda/primitives/copy_async.cuh"
#include "cuda/primitives/device.cuh"
#include "cuda/product/chunk_cursor.cuh"
#include "cuda/product/digit_tiles.cuh"
#include "cuda/product/octets.cuh"
#include "cuda/product/tile_shape.cuh"

namespace vllm_fork {

// Rows of kPieces pieces of 16 bytes, kRows at most and `stride` bytes apart, that kThreads threads
// copy: what a thread has of them.
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

// What a block of threads copies from: groups of panels and of tiles of rows.
template <class Tile>
struct TileSource {
  static constexpr int kPiece = sizeof(Words4);
  static constexpr int kWeightStep = kPanelGroup * kWeightTile;  // bytes, and so on
  static constexpr int kRowStep = Tile::kRowGroup * kRowTile;
  static constexpr int kExponents = kPanelGroup * kOutputs;
  static constexpr int kScales = Tile::kRowGroup * kRowScales;
  template <int kRows, int kBytes>
  using Pieces = RowsOfPieces<Tile::kThreads, kRows, kBytes / kPiece>;

  Pieces<Tile::kPanelGroups, Tile::kChunkSteps * kWeightStep> weights;
  Pieces<Tile::kPanelGroups, kExponents> exponents;
  Pieces<Tile::kRowGroups, Tile::kChunkSteps * kRowStep> rows;
  Pieces<Tile::kRowGroups, kScales> scales;

  __device__ __forceinline__ TileSource(const ProductWork& work, const TilePlace<Tile>& place)
      : TileSource(work, work.weight_tiles, work.row_tiles,
                   (work.weight_tiles.panels - place.panel) / kPanelGroup,
                   (work.row_tiles.tiles - place.row_tile) / Tile::kRowGroup, place) {}

  __device__ __forceinline__ TileSource(const ProductWork& work, const WeightTiles& weight,
                                        const RowTiles& digits, int64_t panel_groups,
                                        int64_t row_groups, const TilePlace<Tile>& place)
      : weights(work.weight + weight.tile_at(place.panel, 0), weight.steps * kWeightStep,
                panel_groups),
        exponents(work.weight + weight.exponents_at(place.panel, 0), weight.blocks * kExponents,
                  panel_groups),
        rows(work.digits + digits.tile_at(place.row_tile, 0), digits.steps * kRowStep, row_groups),
        scales(work.digits + digits.scales_at(place.row_tile, 0), digits.blocks * kScales,
               row_groups) {}

  // Of a chunk. Steps that it lacks are zeros.
  __device__ __forceinline__ void copy_weight(const ProductWork& work,
                                              const ChunkCursor<Tile::kChunkSteps>& at,
                                              Stage<Tile>& stage) const {
    weights.copy(int64_t{at.step} * kWeightStep, work.weight_tiles.steps * kWeightStep,
                 at.steps(work.counts) * (kWeightStep / kPiece), stage.weights);
    if (!at.ends_block(work.counts)) return;
    exponents.copy(int64_t{at.block} * kExponents, work.weight_tiles.blocks * kExponents,
                   kExponents / kPiece, stage.weight_exponents);
  }

  __device__ __forceinline__ void copy_rows(const ProductWork& work,
                                            const ChunkCursor<Tile::kChunkSteps>& at,
                                            Stage<Tile>& stage) const {
    rows.copy(int64_t{at.step} * kRowStep, work.row_tiles.steps * kRowStep,
              at.steps(work.counts) * (kRowStep / kPiece), stage.rows);
    if (!at.ends_block(work.counts)) return;
    scales.copy(int64_t{at.block} * kScales, work.row_tiles.blocks * kScales, kScales / kPiece,
                stage.row_scales);
  }
};

// The chunks of a tile in shared memory: while one is multiplied, the next ones are copied.
template <class Tile>
struct ChunkQueue {
  Stage<Tile>* stages;
  TileSource<Tile> source;
  ChunkCursor<Tile::kChunkSteps> ahead;  // what is copied next
  int left;                              // chunks that are not yet copied
  int stage = 0;                         // the current chunk's

  __device__ __forceinline__ ChunkQueue(const ProductWork& work, const TilePlace<Tile>& place,
                                        Stage<Tile>* all)
      : stages(all),
        source(work, place),
        ahead(work.counts, place.split * work.part_segments),
        left(work.part_segments * chunks_of_segment<Tile::kChunkSteps>(work.counts)) {}

  // Starts to copy the first chunks: of the weight, which is there before the digits of rows are ...
  __device__ __forceinline__ void begin_weight(const ProductWork& work) const {
    ChunkCursor<Tile::kChunkSteps> at = ahead;
    for (int i = 0; i < Tile::kStages - 1 && i < left; ++i) {
      source.copy_weight(work, at, stages[i]);
      at.advance(work.counts);
    }
  }

  // ... and these. The first group of copies is also that of the weight's.
  __device__ __forceinline__ void begin_rows(const ProductWork& work) {
    for (int i = 0; i < Tile::kStages - 1; ++i) {
      if (left > 0) {
        source.copy_rows(work, ahead, stages[i]);
        go_ahead(work);
      }
      commit_copies();
    }
  }

  // The current chunk, when it is there for all threads and none reads the one before any more.
  __device__ __forceinline__ const Stage<Tile>& wait() const {
    wait_for_copies<Tile::kStages - 2>();
    __syncthreads();
    return stages[stage];
  }

  // Starts to copy a chunk to where the one before the current was.
  __device__ __forceinline__ void refill(const ProductWork& work) {
    if (left > 0) {
      Stage<Tile>& to = stages[stage == 0 ? Tile::kStages - 1 : stage - 1];
      source.copy_weight(work, ahead, to);
      source.copy_rows(work, ahead, to);
      go_ahead(work);
    }
    commit_copies();
  }

  __device__ __forceinline__ void advance() { stage = stage + 1 == Tile::kStages ? 0 : stage + 1; }

 private:
  __device__ __forceinline__ void go_ahead(const ProductWork& work) {
    ahead.advance(work.counts);
    --left;
  }
};

}  // namespace vllm_fork
