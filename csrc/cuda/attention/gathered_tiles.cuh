// What a lane gathers of the values that its queries see.
#pragma once

#include "cuda/attention/query_piece.cuh"

namespace vllm_fork {

// What a lane has gathered of its two rows, g and g + 8: values of elements 2 * q and 2 * q + 1 of
// each 8 that its warp has.
template <int kTiles>
struct GatheredTiles {
  Gathered rows[2];
  float values[kTiles][4] = {};
};

// The same of all superblocks until now. They are few enough for its values to wait in shared
// memory, where each thread has its own.
template <int kTiles>
struct TotalTiles {
  struct Memory {
    float values[kTiles][4][kAttentionThreads];
  };

  Gathered rows[2];
  Memory& memory;

  __device__ __forceinline__ TotalTiles() : memory(block_shared<Memory>()) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) value(i, e) = 0.0f;
    }
  }

  __device__ __forceinline__ float& value(int tile, int e) {
    return memory.values[tile][e][threadIdx.x];
  }

  __device__ __forceinline__ void add(const GatheredTiles<kTiles>& coming) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (coming.rows[r].exponent == kUnseen) continue;
      const Rescaling by = merge(rows[r], coming.rows[r]);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) {
          value(i, e) = value(i, e) * by.kept + coming.values[i][e] * by.added;
        }
      }
    }
  }
};

}  // namespace vllm_fork
