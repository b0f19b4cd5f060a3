// A tile of tokens on its way from the cache to products: in shared memory, where its words are read
// without waiting for the cache.
#pragma once

#include "cuda/attention/query_piece.cuh"
#include "cuda/primitives/copy_async.cuh"
#include "cuda/primitives/words.cuh"

namespace vllm_fork {

// Digits as in the cache, upper ones before lower ones, of heads of up to kSize elements. Behind the
// values of four tokens is a gap, so that lanes with other tokens read other banks.
template <int kSize>
struct alignas(16) StagedTile {
  static constexpr int kGap = 32;
  static constexpr int kPieces = kTileTokens / 4;  // of four tokens
  uint8_t keys[2][kTileTokens * kSize];
  uint8_t values[2][kPieces][4 * kSize + kGap];
  uint8_t scales[2 * kTileTokens];

  // All lanes of a warp start to copy a tile, or the values of none, which are zeros.
  __device__ __forceinline__ void take(const FoundTile& found, int32_t size) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (found.digits == nullptr) {
      clear_values(lane);
    } else if (size == kSize) {  // so that loops are unrolled
      copy_all(found, kSize, lane);
    } else {
      copy_all(found, size, lane);
    }
  }

 private:
  static constexpr int kPiece = sizeof(Words4);

  __device__ __forceinline__ void copy_all(const FoundTile& found, int32_t size, int lane) {
    const int32_t digits = kTileTokens * size;
    const uint8_t* first = found.digits + 2 * digits;
#pragma unroll
    for (int digit = 0; digit < 2; ++digit) {
      copy(keys[digit], found.digits + digit * digits, digits, lane);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        copy(values[digit][i], first + (digit * kPieces + i) * 4 * size, 4 * size, lane);
      }
    }
    copy(scales, found.scales, sizeof scales, lane);
  }

  static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from, int32_t bytes,
                                              int lane) {
#pragma unroll
    for (int32_t at = lane * kPiece; at < bytes; at += kWarp * kPiece) {
      copy_async(to + at, from + at, true);
    }
  }

  __device__ __forceinline__ void clear_values(int lane) {
    auto* words = reinterpret_cast<Words4*>(values);
    for (int at = lane; at < static_cast<int>(sizeof values) / kPiece; at += kWarp) {
      words[at] = Words4{};
    }
  }
};

}  // namespace vllm_fork
