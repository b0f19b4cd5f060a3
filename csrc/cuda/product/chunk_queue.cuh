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
        left(work.part_segments * chunks_of_segment<Tile::kChunkSteps>(work.counts)) {
    for (int i = 0; i < Tile::kStages - 1; ++i) copy_next(work, i);
  }

  // The current chunk, when it is there for all threads and none reads the one before any more.
  __device__ __forceinline__ const Stage<Tile>& wait() const {
    wait_for_copies<Tile::kStages - 2>();
    __syncthreads();
    return stages[stage];
  }

  // Starts to copy a chunk to where the one before the current was.
  __device__ __forceinline__ void refill(const ProductWork& work) {
    copy_next(work, stage == 0 ? Tile::kStages - 1 : stage - 1);
  }

  __device__ __forceinline__ void advance() { stage = stage + 1 == Tile::kStages ? 0 : stage + 1; }

 private:
  __device__ __forceinline__ void copy_next(const ProductWork& work, int to) {
    if (left > 0) {
      source.copy(work, ahead, stages[to]);
      ahead.advance(work.counts);
      --left;
    }
    commit_copies();
  }
};

}  // namespace vllm_fork
