// The exact sums of a block of input channels: docs/numerics/products.md, section 5.
#pragma once

#include <type_traits>

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/load_matrices.cuh"
#include "cuda/primitives/matrix_instructions.cuh"
#include "cuda/product/digit_tiles.cuh"
#include "cuda/product/octets.cuh"
#include "cuda/product/step_operands.cuh"
#include "cuda/product/tile_shape.cuh"
#include "cuda/product/warp_sums.cuh"

namespace vllm_fork {

// What the sums of a block are: integers, in any case. The magnitudes of all its products come to
// no more than this, so neither does the sum of any of them, in any order. Hence float32 is exact
// for a whole block (matrix_instructions.cuh), and a bit is left.
inline constexpr int64_t kLargestHigh = kBlock * 127 * 127;
inline constexpr int64_t kLargestMixed = kBlock * 2 * 127 * 128;
static_assert(kLargestHigh < int64_t{1} << 23 && kLargestMixed < int64_t{1} << 23);

template <class Tile>
using BlockSum = std::conditional_t<Tile::kCores == TensorCores::kBfloat16, float, int32_t>;

// The integers of section 5: the sums of high * high, and of high * low + low * high.
template <class Tile>
struct BlockSums {
  using Sum = BlockSum<Tile>;
  Sums<Tile, Sum> high;
  Sums<Tile, Sum> mixed;

  __device__ __forceinline__ void clear() {
    for_each_sum<Tile>([&](int p, int t, int i) {
      high[p][t][i] = 0;
      mixed[p][t][i] = 0;
    });
  }

  __device__ __forceinline__ void add_chunk(const Stage<Tile>& stage, const WarpPlace<Tile>& warp) {
#pragma unroll(Tile::kUnrolledSteps)
    for (int step = 0; step < Tile::kChunkSteps; ++step) add_step(stage, warp, step);
  }

 private:
  __device__ __forceinline__ void add_step(const Stage<Tile>& stage, const WarpPlace<Tile>& warp,
                                           int step) {
    StepOperand<Sum, 4> weight[Tile::kPanels][kDigits];
#pragma unroll
    for (int p = 0; p < Tile::kPanels; ++p) {
#pragma unroll
      for (int digit = 0; digit < static_cast<int>(kDigits); ++digit) {
        uint32_t words[4];
        load_matrices(words, stage.weight_line(warp.panel + p, step, digit, warp.lane));
        weight[p][digit].take(words);
      }
    }
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      uint32_t digits[4];
      load_matrices(digits, stage.row_line(warp.row_tile(t), step, warp.lane));
      StepOperand<Sum, 2> row;
      row.take(digits);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) add(high[p][t], weight[p][0], row);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) add(mixed[p][t], weight[p][1], row);
      row.take(digits + 2);
#pragma unroll
      for (int p = 0; p < Tile::kPanels; ++p) add(mixed[p][t], weight[p][0], row);
    }
  }

  static __device__ __forceinline__ void add(Sum (&sums)[4], const StepOperand<Sum, 4>& weight,
                                             const StepOperand<Sum, 2>& row) {
#pragma unroll
    for (int i = 0; i < StepOperand<Sum, 4>::kProducts; ++i) {
      const uint32_t(&w)[4] = weight.words[i];
      multiply_add(sums, Fragments{{w[0], w[1], w[2], w[3]}, {row.words[i][0], row.words[i][1]}});
    }
  }
};

}  // namespace vllm_fork
