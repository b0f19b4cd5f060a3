// The float32 sums over blocks and segments: docs/numerics/products.md, section 6.
#pragma once

#include "cuda/primitives/device.cuh"
#include "cuda/product/block_sums.cuh"
#include "cuda/product/tile_shape.cuh"
#include "cuda/product/warp_sums.cuh"
#include "portable/product.h"

namespace vllm_fork {

// A lane's sums of a panel and a tile of rows, moved as one.
struct alignas(16) Sums4 {
  float values[4];
};

inline constexpr int kPendingLevels = 3;
static_assert(1 << kPendingLevels == kMostSegments);

// Sums that wait for those of later segments, in global memory: kPendingLevels tiles of them for each
// block of threads.
template <class Tile>
struct PendingSums {
  Sums4* own;  // of the calling thread

  __device__ __forceinline__ explicit PendingSums(float* all) {
    constexpr int kOfBlock = kPendingLevels * Tile::kSums * Tile::kThreads;
    own = reinterpret_cast<Sums4*>(all + int64_t{blockIdx.x} * kOfBlock) + threadIdx.x;
  }

  // Calls use(a function that returns the place of a panel and a tile of rows).
  template <typename Use>
  __device__ __forceinline__ void with_level(int level, const Use& use) const {
    use([this, level](int panel, int row_tile) -> Sums4& {
      const int i = (level * Tile::kPanels + panel) * Tile::kRowTiles + row_tile;
      return own[i * Tile::kThreads];
    });
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
      const float row_scale = stage.row_scales[warp.row_tile(t)][warp.row(i)];
      own[p][t][i] = add_block_sum(own[p][t][i], block.high[p][t][i], block.mixed[p][t][i],
                                   float_of(scale_bits(exponent)), row_scale);
    });
  }

  // Leaves the sum for later if a segment of the same subtree is still to come.
  template <class Pending>
  __device__ __forceinline__ void end_segment(int segment, int segments, const Pending& pending) {
    int level = 0;
    for (; segment >> level & 1; ++level) add(pending, level);
    if (segment + 1 == segments) return;
    pending.with_level(level, [&](const auto& at) {
      for_each_tile<Tile>([&](int p, int t) {
        const float(&sums)[4] = own[p][t];
        at(p, t) = Sums4{{sums[0], sums[1], sums[2], sums[3]}};
      });
    });
    clear();
  }

  template <class Pending>
  __device__ __forceinline__ void add(const Pending& pending, int level) {
    pending.with_level(level, [&](const auto& at) {
      for_each_tile<Tile>([&](int p, int t) {
        const Sums4 before = at(p, t);
#pragma unroll
        for (int i = 0; i < 4; ++i) own[p][t][i] = before.values[i] + own[p][t][i];
      });
    });
  }
};

}  // namespace vllm_fork
