// The order in which a block of threads goes through the steps of its segments.
#pragma once

#include "cuda/primitives/device.cuh"
#include "cuda/product/digit_tiles.cuh"

namespace vllm_fork {

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
  const int of_last_block = (counts.last_steps + kChunkSteps - 1) / kChunkSteps;
  return (counts.segment_blocks - 1) * kOfBlock + of_last_block;
}

}  // namespace vllm_fork
