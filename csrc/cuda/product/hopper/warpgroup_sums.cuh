// A warpgroup's sums of a tile of a product: docs/numerics/products.md, sections 5 and 6.
//
// It waits for the digits, but never for the other warpgroup: while one of them makes float32
// numbers of the integers of a block, tensor cores multiply for the other.
#pragma once

#include "cuda/primitives/laps.cuh"
#include "cuda/primitives/registers.cuh"
#include "cuda/product/warp_sums.cuh"
#include "cuda/product/hopper/warpgroup_instructions.cuh"
#include "cuda/product/hopper/warpgroup_memory.cuh"

namespace vllm_fork {

// A lane's sums that wait for those of later segments: in shared memory, and those of the last
// level in global memory, a tile of them for each block of threads.
template <class Tile>
struct PendingOfLane {
  WarpgroupMemory<Tile>& memory;
  Sums4* last_level;  // the thread's first

  __device__ __forceinline__ PendingOfLane(WarpgroupMemory<Tile>& shared, float* all)
      : memory(shared) {
    constexpr int kOfBlock = Tile::kSums * Tile::kMultiplying;
    last_level = reinterpret_cast<Sums4*>(all + int64_t{blockIdx.x} * kOfBlock) + threadIdx.x;
  }

  // See PendingSums.
  template <typename Use>
  __device__ __forceinline__ void with_level(int level, const Use& use) const {
    if (level == kLevelsInShared) {
      use([this](int, int row_tile) -> Sums4& {
        return last_level[row_tile * Tile::kMultiplying];
      });
      return;
    }
    auto* own = &memory.pending[level][threadIdx.x / kWarp][0][threadIdx.x % kWarp];
    use([own](int, int row_tile) -> Sums4& { return own[row_tile * kWarp]; });
  }
};

// Its laps: 0 waiting for digits, 1 products, 2 waiting for the last of a block, 3 rounding, 4 sums of
// segments.
template <class Tile>
struct WarpgroupSums {
  using Memory = WarpgroupMemory<Tile>;
  static constexpr int kTiles = Tile::kRowTiles;

  Memory& memory;
  unsigned int weights;  // the place of the warpgroup's in the first stage, and of the rows
  unsigned int rows;
  typename Memory::StepCursor at;
  typename Memory::ScaleCursor at_scales;
  TreeSums<Tile> tree;
  Laps laps;

  __device__ __forceinline__ explicit WarpgroupSums(Memory& shared) : memory(shared) {
    const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
    weights = uniform(sixteens_of(memory.stages[0].weight[group]));
    rows = uniform(sixteens_of(memory.stages[0].rows));
  }

  __device__ __forceinline__ void add_part(const ProductWork& work) {
    const PendingOfLane<Tile> pending(memory, work.pending);
    tree.clear();
    for (int segment = 0; segment < work.part_segments; ++segment) {
      for (int block = 0; block < work.counts.segment_blocks; ++block) {
        add_block(work.counts.steps_of(block));
      }
      tree.end_segment(segment, work.part_segments, pending);
      laps.end(4);
    }
  }

 private:
  using Integers = int32_t[kTiles][4];

  static __device__ __forceinline__ unsigned int uniform(unsigned int place) {
    return __shfl_sync(kAllLanes, place, 0);
  }

  // While a step is multiplied, the next one is already asked for.
  __device__ __forceinline__ void add_block(int steps) {
    Integers high;
    Integers mixed;
    multiply<false>(high, mixed);
    for (int step = 1; step < steps; ++step) {
      multiply<true>(high, mixed);
      wait_for_products<1>();
      laps.end(1);
      give_back(at.stage < 2 ? at.stage + Tile::kStages - 2 : at.stage - 2);
    }
    wait_for_products<0>();
    laps.end(2);
    give_back(at.stage == 0 ? Tile::kStages - 1 : at.stage - 1);
    hold_all(high);
    hold_all(mixed);
    add_to_tree(high, mixed);
    laps.end(3);
  }

  template <bool kAdds>
  __device__ __forceinline__ void multiply(Integers& high, Integers& mixed) {
    laps.end(1);
    memory.is_full[at.stage].wait(at.parity);
    laps.end(0);
    constexpr unsigned int kStage = sizeof(StepDigits<Tile>) / kMatrixBytes;
    const unsigned int behind = uniform(static_cast<unsigned int>(at.stage)) * kStage;
    const unsigned int weight = weights + behind;
    const unsigned int row = rows + behind;
    begin_products();
    multiply_step<kAdds>(high, digit_at(weight, 0), digit_at(row, 0));
    multiply_step<kAdds>(mixed, digit_at(weight, 1), digit_at(row, 0));
    multiply_step<true>(mixed, digit_at(weight, 0), digit_at(row, 1));
    commit_products();
    at.advance();
  }

  // The stage is no longer needed, when all lanes are done with it.
  __device__ __forceinline__ void give_back(int stage) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) memory.is_empty[stage].arrive();
  }

  static __device__ __forceinline__ void hold_all(Integers& sums) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) hold(sums[t][i]);
    }
  }

  // A term is exact as a product of three or of two factors, so that it may be fused with the sum.
  __device__ __forceinline__ void add_to_tree(const Integers& high, const Integers& mixed) {
    const ScalesOfBlock<Tile>& scales = memory.scales[at_scales.stage];
    const WarpPlace<Tile> warp;
    const uint8_t* exponents =
        scales.weight_exponents[warp.panel / kPanelGroup][warp.panel % kPanelGroup];
    float weight_scales[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weight_scales[i] = float_of(scale_bits(int32_t{exponents[warp.output(2 * i)]}));
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      float row_scales[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        row_scales[i] = scales.rows[t / Tile::kRowGroup][t % Tile::kRowGroup][warp.row(i)];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& sum = tree.own[0][t][i];
        sum = add_block_sum(sum, high[t][i], mixed[t][i], weight_scales[i / 2] * row_scales[i % 2]);
      }
    }
    __syncwarp();
    if (threadIdx.x % kWarp == 0) memory.are_used[at_scales.stage].arrive();
    at_scales.advance();
  }
};

}  // namespace vllm_fork
