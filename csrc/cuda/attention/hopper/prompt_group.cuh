// A warpgroup that attends for 64 rows, each of its warps for 16 of them and all tokens.
#pragma once

#include "cuda/attention/hopper/prompt_memory.cuh"
#include "cuda/attention/hopper/prompt_products.cuh"
#include "cuda/attention/hopper/prompt_weights.cuh"
#include "cuda/primitives/laps.cuh"

namespace vllm_fork {

// Its laps: 0 waiting for a block, 1 scores, 2 weights, 3 values, 4 all else.
//
// kIsPlain: without a soft cap and without ALiBi's slopes.
template <int kSize, bool kIsPlain>
struct PromptGroup {
  static constexpr int kHalves = kSize / 64;  // of the values, for which there are registers
  static constexpr int kSteps = kSize / 32;

  const PagedAttention& task;
  const QueryPiece<kPromptRows>& piece;
  PromptMemory<kSize>& memory;
  unsigned int queries;  // their place
  int first_row;  // of the lane's two in the piece; the second is 8 further on
  int place;      // among the lanes of the same rows
  float cap;
  BlockCursor at;
  Laps laps;
  SeenTokens seen_by_group;
  SeenTokens seen_by_all;  // the rows of the warp
  float largest_factor;    // of them
  bool are_slopes_finite;  // of them
  QueryFacts facts[2];
  Gathered rows[2];
  float values[kHalves][kColumnTiles][4];

  __device__ __forceinline__ PromptGroup(const PagedAttention& paged,
                                         const QueryPiece<kPromptRows>& query,
                                         PromptMemory<kSize>& shared)
      : task(paged),
        piece(query),
        memory(shared),
        cap(score_rule(paged.scale, paged.soft_cap, 0.0f, 0).cap) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
    first_row = warp_row + lane / 4;
    place = lane % 4;
    const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
    queries = __shfl_sync(kAllLanes, sixteens_of(memory.queries[group]), 0);
    const int group_row = group * kGroupRows;
    seen_by_group = piece.has(group_row)
                        ? piece.seen_by_any(group_row, group_row + kGroupRows, task)
                        : SeenTokens{0, -kBlockTokens};
    // Rows are in the order of tokens: the first sees least far ahead, the last least far back.
    const int last_row = piece.rows_before(warp_row + 16) - 1;
    seen_by_all = {piece.seen_by(last_row < warp_row ? warp_row : last_row, task).first,
                   piece.seen_by(warp_row, task).last};
    for (int r = 0; r < 2; ++r) facts[r] = memory.facts[first_row + 8 * r];
    const float factor = facts[0].factor > facts[1].factor ? facts[0].factor : facts[1].factor;
    largest_factor = warp_largest(factor);
    const float slope = magnitude(facts[0].slope) + magnitude(facts[1].slope);
    const int is_finite = slope < float_of(kInfinityBits) ? 1 : 0;
    are_slopes_finite = kIsPlain || __ballot_sync(kAllLanes, is_finite) == kAllLanes;
#pragma unroll
    for (int v = 0; v < kSize / 2; ++v) total(v) = 0.0f;
  }

  // `seen`: by any row of the block of threads, whose blocks of tokens are loaded.
  __device__ __forceinline__ void attend_to_all(const SeenTokens& seen) {
    constexpr int32_t kBlocks = kSuperblockTokens / kBlockTokens;
    const int32_t end = seen.last / kBlockTokens + 1;
    const int32_t own_end = seen_by_group.last / kBlockTokens + 1;
    int32_t block = seen.first / kBlockTokens;
    laps.begin();
    for (; block < end && block < seen_by_group.first / kBlockTokens; ++block) pass();
    Gathered totals[2];
    while (block < own_end) {
      clear();
      const int32_t next = (block / kBlocks + 1) * kBlocks;
      for (; block < next && block < own_end; ++block) {
        laps.end(4);
        memory.is_full[at.stage].wait(at.parity);
        laps.end(0);
        attend(block * kBlockTokens, memory.stages[at.stage]);
        leave();
      }
      end_superblock(totals);
    }
    for (; block < end; ++block) pass();
    write_results(totals);
    laps.tell(static_cast<int>(threadIdx.x) / kWarpgroup);
  }

 private:
  // The stage is no longer needed, when all lanes are done with it.
  __device__ __forceinline__ void leave() {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) memory.is_empty[at.stage].arrive();
    at.advance();
  }

  // A block of which no row of the group sees a token.
  __device__ __forceinline__ void pass() {
    memory.is_full[at.stage].wait(at.parity);
    leave();
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int v = 0; v < kSize / 2; ++v) value(v) = 0.0f;
    rows[0] = rows[1] = Gathered();
  }

  // Number v of a lane: of row v % 4 / 2, element 8 * (v / 4) + 2 * place + v % 2.
  __device__ __forceinline__ float& value(int v) {
    return values[v / (4 * kColumnTiles)][v / 4 % kColumnTiles][v % 4];
  }
  __device__ __forceinline__ float& total(int v) { return memory.totals[v][threadIdx.x]; }

  // --- a block of tokens -------------------------------------------------------------------------

  __device__ __forceinline__ void multiply_keys(unsigned int stage, TileProducts& products) {
    using Queries = typename PromptMemory<kSize>::Queries;
    using Keys = typename PromptStage<kSize>::Keys;
    constexpr size_t kOffset = offsetof(PromptStage<kSize>, keys);
    multiply_digits(products, [&](TileSums& sums, auto pair) {
      using Pair = decltype(pair);
      multiply_shared<Pair::kAdds>(sums, Queries::from(queries, 0, Pair::kLeft, 0, 0),
                                   Keys::from(stage, kOffset, Pair::kRight, 0, 0));
#pragma unroll
      for (int step = 1; step < kSteps; ++step) {
        multiply_shared<true>(sums, Queries::from(queries, 0, Pair::kLeft, 0, 2 * step),
                              Keys::from(stage, kOffset, Pair::kRight, 0, 2 * step));
      }
    });
  }

  __device__ __forceinline__ void multiply_values(unsigned int stage, const WeightWords& weights,
                                                  int half, TileProducts& products) {
    using Values = typename PromptStage<kSize>::Values;
    constexpr size_t kOffset = offsetof(PromptStage<kSize>, values);
    multiply_digits(products, [&](TileSums& sums, auto pair) {
      using Pair = decltype(pair);
      constexpr bool kIsSigned = Pair::kLeft == 0;
      multiply_words<Pair::kAdds, kIsSigned>(sums, weights.words[Pair::kLeft][0],
                                             Values::from(stage, kOffset, Pair::kRight, 64 * half, 0));
      multiply_words<true, kIsSigned>(sums, weights.words[Pair::kLeft][1],
                                      Values::from(stage, kOffset, Pair::kRight, 64 * half, 2));
    });
  }

  // What a block's weights are when values are multiplied, and how these are added to the rest.
  struct BlockWeights {
    WeightWords words;
    float kept[2];
    float unit[2];
  };

  __device__ __forceinline__ void attend(int32_t first, const PromptStage<kSize>& stage) {
    const unsigned int place_of_stage = __shfl_sync(kAllLanes, sixteens_of(&stage), 0);
    const bool is_common = are_slopes_finite && first >= seen_by_all.first &&
                           first + kBlockTokens <= seen_by_all.last + 1 &&
                           are_common(stage.scales, largest_factor);
    TileProducts products;
    multiply_keys(place_of_stage, products);
    laps.end(1);
    BlockWeights weights;
    if (is_common) {
      weigh<true>(products, stage.scales, first, weights);
    } else {
      weigh<false>(products, stage.scales, first, weights);
    }
    laps.end(2);
    add_values(place_of_stage, weights);
    laps.end(3);
  }

  template <bool kIsCommon>
  __device__ __forceinline__ void weigh(const TileProducts& products, const BlockScales& scales,
                                        int32_t first, BlockWeights& weights) {
    LaneWeights own;
    if (kIsCommon) {
      weigh_common<kIsPlain>(products, scales, first, place, cap, facts, own);
    } else {
      weigh_any(products, scales, first, place, cap, facts, own);
    }
    const BlockExponents largest = largest_exponents(own, scales, place);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t integers[kLaneTokens];
      int32_t sum = kIsCommon ? round_common(own, scales, place, largest, r, integers)
                              : round_any(own, scales, place, largest, r, integers);
      sum = combine_quad(sum, [](int32_t a, int32_t b) { return a + b; });
      pack_weights(integers, r, weights.words);
      gather_sum(largest, sum, r, weights.kept[r], weights.unit[r]);
    }
  }

  // Where a row sees no token, it keeps what it has: of that, a unit below 0 tells.
  __device__ __forceinline__ void gather_sum(const BlockExponents& largest, int32_t sum, int r,
                                             float& kept, float& unit) {
    const int32_t weight = largest.weight[r] - kExponentBias;
    kept = 1.0f;
    unit = -1.0f;
    if (weight == kUnseen) return;
    const Rescaling by(rows[r].exponent, weight);
    kept = by.kept;
    unit = power_of_two(unit_of_values(largest.value[r] - kExponentBias, by.exponent));
    const float sum_unit = power_of_two(unit_of_sum(weight, by.exponent));
    rows[r].sum = rows[r].sum * kept + static_cast<float>(sum) * sum_unit;
    rows[r].exponent = by.exponent;
  }

  // If nothing has to be brought to another unit, fma does what a product and a sum do: the product
  // with a unit is exact, and below infinity as long as the unit is not very large.
  __device__ __forceinline__ void add_values(unsigned int stage, BlockWeights& weights) {
    const float(&kept)[2] = weights.kept;
    const float(&unit)[2] = weights.unit;
    constexpr float kLargestUnit = 0x1p80f;  // products are below 2^37
    bool is_simple = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      is_simple = is_simple && kept[r] == 1.0f && unit[r] >= 0.0f && unit[r] <= kLargestUnit;
    }
    const bool are_simple = __ballot_sync(kAllLanes, is_simple ? 1 : 0) == kAllLanes;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      TileProducts products;
      multiply_values(stage, weights.words, half, products);
      if (are_simple) {
        for_each_product(products, half, [&](float& value, float product, int r) {
          value = fused(product, unit[r], value);
        });
      } else {
        for_each_product(products, half, [&](float& value, float product, int r) {
          const float sum = value * kept[r] + product * unit[r];
          value = unit[r] < 0.0f ? value : sum;
        });
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) hold(weights.words.words[i / 8][i / 4 % 2][i % 4]);
  }

  template <typename Use>
  __device__ __forceinline__ void for_each_product(const TileProducts& products, int half,
                                                   const Use& use) {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) use(values[half][j][e], products[j][e], e / 2);
    }
  }

  // --- superblocks and results -------------------------------------------------------------------

  __device__ __forceinline__ void end_superblock(Gathered (&totals)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (rows[r].exponent == kUnseen) continue;
      const Rescaling by = merge(totals[r], rows[r]);
#pragma unroll
      for (int v = 2 * r; v < kSize / 2; v += 4) {
#pragma unroll
        for (int e = v; e < v + 2; ++e) total(e) = total(e) * by.kept + value(e) * by.added;
      }
    }
  }

  __device__ __forceinline__ void write_results(const Gathered (&totals)[2]) {
    const int64_t size = task.cache.head_size;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + 8 * r;
      const bool is_valid =
          combine_quad(facts[r].is_valid ? 1 : 0, [](int a, int b) { return a & b; }) != 0;
      if (!piece.is_in_place(row, task)) continue;
      const RowEnd end(task, piece.head(row), totals[r], is_valid);
      const int64_t start = (piece.query(row) * task.heads + piece.head(row)) * size;
#pragma unroll
      for (int v = 2 * r; v < kSize / 2; v += 4) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int element = v / 4 * 8 + 2 * place + e;
          if (element >= size) continue;
          write_number(task.result, task.query.format, start + element, end.result(total(v + e)));
        }
      }
    }
  }
};

}  // namespace vllm_fork
