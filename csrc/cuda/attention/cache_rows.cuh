// Tiles of the cache of portable attention, and rows on their way to integers, one to a warp.
//
// Specification: docs/numerics/attention.md, "Rows of integers" and "The cache".
#pragma once

#include "cuda/attention/cache.h"
#include "cuda/primitives/numbers.cuh"
#include "cuda/primitives/warp_reduce.cuh"
#include "portable/attention.h"

namespace vllm_fork {

// The digits of a tile of a page, and its scales.
struct TilePlace {
  uint8_t* digits;
  uint8_t* scales;

  __device__ __forceinline__ TilePlace(const CachePages& cache, int64_t page, int64_t tile,
                                       int64_t head) {
    const TileLayout layout{cache.head_size};
    uint8_t* start = cache.start + page * cache.page_stride + head * cache.head_stride;
    digits = start + tile * layout.digit_bytes();
    scales = start + cache.page_tiles * layout.digit_bytes() + tile * layout.scale_bytes();
  }
};

// The scale of a row of which each lane of a warp knows the bits of some magnitudes.
__device__ __forceinline__ uint32_t scale_of_lanes(uint32_t largest) {
  return scale_of(warp_largest(largest));
}

constexpr int kRowWords = static_cast<int>(kLargestHead) / (4 * kWarp);  // of a lane, at most

// A lane's elements of a row: 4 in each word.
struct RowWords {
  float x[kRowWords][4];

  __device__ __forceinline__ RowWords(const void* start, Format format, int64_t first,
                                      int64_t size) {
    const int64_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (int w = 0; w < kRowWords; ++w) {
      const int64_t d = 4 * (lane + w * kWarp);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[w][j] = d < size ? read_number(start, format, first + d + j) : 0.0f;
      }
    }
  }

  __device__ __forceinline__ uint32_t scale() const {
    uint32_t largest = 0;
#pragma unroll
    for (int w = 0; w < kRowWords; ++w) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t bits = bits_of(magnitude(x[w][j]));
        largest = bits > largest ? bits : largest;
      }
    }
    return scale_of_lanes(largest);
  }
};

}  // namespace vllm_fork
