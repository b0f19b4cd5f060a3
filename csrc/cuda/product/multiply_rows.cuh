// Digits of rows times digits of a weight, on tensor cores: docs/numerics/products.md, 5 and 6.
//
// A block of threads computes a tile of the product: some panels of outputs, some tiles of rows.
// Its warps share the tile out; each has its sums in registers. Digits come to shared memory in
// chunks of a few steps, several chunks ahead of the one that is multiplied.
//
// Where there are too few tiles to occupy the GPU, several blocks of threads share one: each takes
// an equal part of the segments, whose sum is a whole subtree of the specification's tree of
// halves. The one that comes last adds these sums; which one that is changes nothing.
#pragma once

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/device.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/product/block_sums.cuh"
#include "cuda/product/chunk_cursor.cuh"
#include "cuda/product/chunk_queue.cuh"
#include "cuda/product/tile_results.cuh"
#include "cuda/product/tile_shape.cuh"
#include "cuda/product/tree_sums.cuh"
#include "cuda/product/warp_sums.cuh"

namespace vllm_fork {

template <class Tile>
__device__ __forceinline__ void multiply_part(const ProductWork& work, int part,
                                              Stage<Tile>* stages) {
  const WarpPlace<Tile> warp;
  const TilePlace<Tile> place(work, part);
  ChunkQueue<Tile> queue(work, place, stages);
  queue.begin_weight(work);
  wait_for_earlier_kernels();  // at once, but in the first part
  queue.begin_rows(work);
  ChunkCursor<Tile::kChunkSteps> at(work.counts, place.split * work.part_segments);
  BlockSums<Tile> block;
  TreeSums<Tile> tree;
  block.clear();
  tree.clear();
  for (int segment = 0; segment < work.part_segments;) {
    const Stage<Tile>& stage = queue.wait();
    block.add_chunk(stage, warp);
    queue.refill(work);
    if (at.ends_block(work.counts)) {
      tree.add_block(block, stage, warp);
      if (at.ends_segment(work.counts)) {
        tree.end_segment(segment++, work.part_segments, PendingSums<Tile>(work.pending));
      }
      block.clear();
    }
    at.advance(work.counts);
    queue.advance();
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
  const int blocks = static_cast<int>(gridDim.x);
  for (int part = static_cast<int>(blockIdx.x); part < work.parts; part += blocks) {
    multiply_part(work, part, dynamic_shared<Stage<Tile>>());
    __syncthreads();  // before shared memory is written anew
  }
}

}  // namespace vllm_fork
