// Attention over a paged cache of integers, for prefill and decode.
//
// Specification: docs/numerics/attention.md. A block of 4 warps attends, for 16 queries of a
// sequence that share a head of keys, to 64 tokens at a time: each warp weighs 16 of the tokens, and
// then adds up the values of every fourth 8 elements of a head. All products are exact, on tensor
// cores; what is rounded is in registers of the lane that owns it, in the specification's order.
//
// A warp copies the tile of its 16 tokens to shared memory: while the block before is attended to, or
// behind it if the head has more than 128 elements, since there is no room for two.
#pragma once

#include "cuda/attention/digit_sums.cuh"
#include "cuda/attention/gathered_tiles.cuh"
#include "cuda/attention/staged_tile.cuh"
#include "cuda/primitives/laps.cuh"

namespace vllm_fork {

template <int kTiles>
struct AttentionMemory {
  static constexpr int kSize = kTiles * kElements * kWarps;  // of a head, at most
  LeftOperand queries[2][kSize / (4 * kStepWords)];          // upper and lower digits
  LeftOperand weights[2][kWeightSteps];
  QueryFacts facts[kQueries];
  // What a warp has found about its tokens.
  int32_t exponents[kWarps][kQueries];
  int32_t value_exponents[kWarps][kQueries];
  int32_t sums[kWarps][kQueries];
  bool is_invalid[kWarps][kQueries];
};

// Its laps: 0 scores, 1 waiting for other warps, 2 copies, 3 weights, 4 waiting for these, 5 values,
// 6 waiting for copies.
template <int kTiles>
struct Attention {
  using Memory = AttentionMemory<kTiles>;
  using Staged = StagedTile<Memory::kSize>;
  // Blocks of tokens in shared memory: of the largest heads one, since some GPUs have 99 KiB.
  static constexpr int kStages = Memory::kSize <= 128 ? 2 : 1;
  static constexpr int kResident = kStages == 2 ? 3 : 2;  // blocks of threads that there are registers for
  static constexpr size_t kStagedBytes = kStages * kWarps * sizeof(Staged);

  const PagedAttention& task;
  const QueryPiece<kQueries>& piece;
  Memory& memory;
  Staged* staged;      // of each warp, for the current block
  bool is_there;       // the warp's tile of that block
  bool will_be_there;  // and of the next one
  int rows_of_lane;    // that may be there
  int32_t size;        // of a head
  int lane;
  int warp;
  int group;  // the first of the lane's two rows; the second is 8 further on
  int place;  // among the lanes of the same rows
  float cap;
  SeenTokens seen;  // by any of the rows
  QueryFacts facts[2];
  Laps laps;

  __device__ __forceinline__ Attention(const PagedAttention& paged,
                                       const QueryPiece<kQueries>& rows,
                                       const SeenTokens& seen_by_any)
      : task(paged),
        piece(rows),
        memory(block_shared<Memory>()),
        staged(dynamic_shared<Staged>()),
        rows_of_lane(rows.rows_before(kQueries) > kQueries / 2 ? 2 : 1),
        size(static_cast<int32_t>(paged.cache.head_size)),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        group(lane / 4),
        place(lane % 4),
        cap(score_rule(paged.scale, paged.soft_cap, 0.0f, 0).cap),
        seen(seen_by_any) {
    for (int i = 0; i < kQueries / kWarps; ++i) prepare_row(warp * (kQueries / kWarps) + i);
    __syncthreads();
    for (int r = 0; r < 2; ++r) facts[r] = memory.facts[group + 8 * r];
  }

  __device__ __forceinline__ int elements_of(int tile) const {
    return (warp + kWarps * tile) * kElements;
  }
  __device__ __forceinline__ bool has(int tile) const { return elements_of(tile) < size; }

  __device__ __forceinline__ bool is_in_place(int row) const {
    return piece.is_in_place(row, task);
  }

  __device__ __forceinline__ void prepare_row(int row) {
    prepare_query(task, piece, row, memory.facts[row], [&](int word, const DigitWords& digits) {
      if (4 * word >= Memory::kSize) return;
      memory.queries[0][word / kStepWords].at(row, word % kStepWords) = digits.upper;
      memory.queries[1][word / kStepWords].at(row, word % kStepWords) = digits.lower;
    });
  }

  // --- tokens ----------------------------------------------------------------------------------

  // The warp's tile of the block of tokens from `first` on, if any row sees it.
  __device__ __forceinline__ FoundTile found(int32_t first) const {
    return FoundTile(task, piece, seen, first / kTileTokens + warp);
  }

  // Starts to copy the block from `first` on to where the one before the current was.
  __device__ __forceinline__ void copy_next(int32_t first, int32_t end) {
    if (first >= end) return;
    const FoundTile own = found(first);
    will_be_there = own.digits != nullptr;
    other_stage()[warp].take(own, size);
    commit_copies();
  }

  __device__ __forceinline__ Staged* other_stage() const {
    auto* first = dynamic_shared<Staged>();
    return kStages == 1 || staged != first ? first : first + kWarps;
  }

  // The next block becomes the current one. All lanes see the warp's tile of it.
  __device__ __forceinline__ void advance() {
    wait_for_copies<0>();
    __syncwarp();
    staged = other_stage();
    is_there = will_be_there;
  }

  // Scores of a lane's two rows and of the four tokens 4 * place.. of its warp's tile.
  struct Scores {
    float fractions[2][4];
    int32_t exponents[2][4];
    int32_t value_scales[4];
  };

  __device__ __forceinline__ void multiply_keys(ProductSums (&sums)[2]) const {
    // Column g of product j is token 4 * (g / 2) + 2 * j + g % 2, so that sums of four tokens in a
    // row come to one lane.
    constexpr int kKeyWord = 4 * kTileTokens;  // bytes of 4 elements of all tokens
    constexpr int kLower = sizeof(Staged::keys[0]);  // bytes behind the upper digits
    const uint8_t* keys = staged[warp].keys[0] + place * kKeyWord + 4 * (group / 2 * 4 + group % 2);
    const int steps = (size + 4 * kStepWords - 1) / (4 * kStepWords);
    __syncwarp();  // for the products
#pragma unroll 2
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        // In a last step of half the elements, those of the query are 0.
        const uint8_t* first = keys + step * kStepWords * kKeyWord + 4 * 2 * j;
        const uint8_t* second = first + kStepWords / 2 * kKeyWord;
        const uint32_t upper[2] = {word_at(first), word_at(second)};
        const uint32_t lower[2] = {word_at(first + kLower), word_at(second + kLower)};
        sums[j].add(memory.queries[0][step], memory.queries[1][step], upper, lower);
      }
    }
  }

  __device__ __forceinline__ Scores score_tokens(int32_t first) {
    ProductSums sums[2];
    uint32_t key_scales = ~0u;  // of a tile that should be there and is not: all invalid
    uint32_t value_scales = ~0u;
    if (is_there) {
      multiply_keys(sums);
      key_scales = word_at(staged[warp].scales + 4 * place);
      value_scales = word_at(staged[warp].scales + kTileTokens + 4 * place);
    }
    Scores scores;
#pragma unroll
    for (int k = 0; k < 4; ++k) scores.value_scales[k] = static_cast<int32_t>(byte_of(value_scales, k));
    bool is_invalid[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (r >= rows_of_lane) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int32_t token = first + warp * kTileTokens + 4 * place + k;
        const uint32_t key_scale = byte_of(key_scales, k);
        const float product = sums[k / 2].product(2 * r + k % 2);
        const Weight weight(score(product, unit_of(key_scale), facts[r].factor, cap,
                                  facts[r].slope,
                                  static_cast<float>(token - facts[r].seen.last)));
        const bool is_seen = token >= facts[r].seen.first && token <= facts[r].seen.last;
        scores.fractions[r][k] = weight.fraction;
        scores.exponents[r][k] = is_seen ? weight.exponent : kUnseen;
        is_invalid[r] |= is_seen && (key_scale == kInvalidScale ||
                                     byte_of(value_scales, k) == kInvalidScale);
      }
    }
    tell(scores, is_invalid);
    return scores;
  }

  // Tells the other warps what is largest among the warp's tokens.
  __device__ __forceinline__ void tell(const Scores& scores, const bool (&is_invalid)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (r >= rows_of_lane) continue;
      int32_t exponent = kUnseen;
      int32_t value_exponent = kUnseen;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        exponent = larger(exponent, scores.exponents[r][k]);
        value_exponent =
            larger(value_exponent, scores.exponents[r][k] + scores.value_scales[k]);
      }
      exponent = combine_quad(exponent, larger);
      value_exponent = combine_quad(value_exponent, larger);
      const int invalid =
          combine_quad(is_invalid[r] ? 1 : 0, [](int a, int b) { return a | b; });
      if (place != 0) continue;
      memory.exponents[warp][group + 8 * r] = exponent;
      memory.value_exponents[warp][group + 8 * r] = value_exponent;
      memory.is_invalid[warp][group + 8 * r] = invalid != 0;
    }
  }

  // The largest exponents of all of a block's tokens that a row sees.
  struct BlockExponents {
    int32_t weight = kUnseen;
    int32_t value = kUnseen;
  };

  __device__ __forceinline__ BlockExponents largest_exponents(int r) {
    BlockExponents largest;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      largest.weight = larger(largest.weight, memory.exponents[w][group + 8 * r]);
      largest.value = larger(largest.value, memory.value_exponents[w][group + 8 * r]);
      if (memory.is_invalid[w][group + 8 * r]) facts[r].is_valid = false;
    }
    return largest;
  }

  // Makes weights of the scores, for all warps to multiply values with.
  __device__ __forceinline__ void weigh(const Scores& scores, const BlockExponents& largest,
                                        int r) {
    int32_t sum = 0;
    int32_t weights[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int32_t exponent = scores.exponents[r][k];
      const bool is_seen = exponent != kUnseen;
      const int32_t in_sum = weight_in_sum(scores.fractions[r][k], exponent - largest.weight);
      const int32_t of_value = weight_of_value(scores.fractions[r][k],
                                               exponent + scores.value_scales[k] - largest.value);
      sum += is_seen ? in_sum : 0;
      weights[k] = is_seen ? of_value : 0;
    }
    sum = combine_quad(sum, [](int32_t a, int32_t b) { return a + b; });
    const int row = group + 8 * r;
    if (place == 0) memory.sums[warp][row] = sum;
    const DigitWords digits(weights);
    const int word = warp % 2 * (kStepWords / 2) + place;
    memory.weights[0][warp / 2].at(row, word) = digits.upper;
    memory.weights[1][warp / 2].at(row, word) = digits.lower;
  }

  __device__ __forceinline__ ProductSums multiply_values(int elements) const {
    constexpr int kLower = sizeof(Staged::values[0]);  // bytes behind the upper digits
    ProductSums sums;
    __syncwarp();  // for the products
#pragma unroll
    for (int step = 0; step < kWeightSteps; ++step) {
      uint32_t upper[2];
      uint32_t lower[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint8_t* values = staged[2 * step + i].values[0][place] + 4 * (elements + group);
        upper[i] = word_at(values);
        lower[i] = word_at(values + kLower);
      }
      sums.add(memory.weights[0][step], memory.weights[1][step], upper, lower);
    }
    return sums;
  }

  // --- a block of tokens -------------------------------------------------------------------------

  // Then the next one is current, if it is before `end`.
  __device__ __forceinline__ void add_block(int32_t first, int32_t end,
                                            GatheredTiles<kTiles>& gathered) {
    const Scores scores = score_tokens(first);
    laps.end(0);
    __syncthreads();  // nor does a warp read the block before
    laps.end(1);
    if (kStages > 1) copy_next(first + kBlockTokens, end);
    laps.end(2);
    BlockExponents largest[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (r >= rows_of_lane) continue;
      largest[r] = largest_exponents(r);
      weigh(scores, largest[r], r);
    }
    laps.end(3);
    __syncthreads();
    laps.end(4);
    float kept[2] = {};
    float unit[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) gather_sums(largest[r], r, gathered.rows[r], kept[r], unit[r]);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (!has(i)) continue;
      const ProductSums sums = multiply_values(elements_of(i));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = e / 2;
        const float value = gathered.values[i][e] * kept[r] + sums.product(e) * unit[r];
        gathered.values[i][e] = largest[r].weight == kUnseen ? gathered.values[i][e] : value;
      }
    }
    laps.end(5);
    if (kStages == 1) {
      __syncthreads();
      copy_next(first + kBlockTokens, end);
    }
    advance();
    laps.end(6);
  }

  __device__ __forceinline__ void gather_sums(const BlockExponents& largest, int r,
                                              Gathered& there, float& kept, float& unit) const {
    if (largest.weight == kUnseen) return;
    int32_t sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += memory.sums[w][group + 8 * r];
    const Rescaling by(there.exponent, largest.weight);
    kept = by.kept;
    unit = power_of_two(unit_of_values(largest.value, by.exponent));
    const float sum_unit = power_of_two(unit_of_sum(largest.weight, by.exponent));
    there.sum = there.sum * kept + static_cast<float>(sum) * sum_unit;
    there.exponent = by.exponent;
  }

  __device__ __forceinline__ void add_superblock(int64_t superblock,
                                                 GatheredTiles<kTiles>& gathered) {
    const auto start = static_cast<int32_t>(superblock * kSuperblockTokens);
    const int32_t all = start + kSuperblockTokens;
    const int32_t end = all < seen.last + 1 ? all : seen.last + 1;
    const int32_t earliest = seen.first / kBlockTokens * kBlockTokens;
    const int32_t first = larger(start, earliest);
    __syncthreads();  // no warp reads the block before
    copy_next(first, end);
    advance();
    laps.begin();
    for (int32_t block = first; block < end; block += kBlockTokens) {
      add_block(block, end, gathered);
    }
  }

  // --- results -----------------------------------------------------------------------------------

  // Calls use(row, tile, e, d) for each of the lane's results.
  template <typename Use>
  __device__ __forceinline__ void for_each_value(int r, const Use& use) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (!has(i)) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) use(i, 2 * r + e, elements_of(i) + 2 * place + e);
    }
  }

  __device__ __forceinline__ void write_part(const GatheredTiles<kTiles>& gathered, float* parts,
                                             int64_t splits, int64_t superblock) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = group + 8 * r;
      if (!is_in_place(row)) continue;
      const Part part(parts, task, splits, piece.query(row), piece.head(row), superblock);
      for_each_value(r, [&](int i, int e, int d) { part.values[d] = gathered.values[i][e]; });
      if (warp == 0 && place == 0) part.write(gathered.rows[r], facts[r].is_valid);
    }
  }

  __device__ __forceinline__ void write_result(TotalTiles<kTiles>& total) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = group + 8 * r;
      if (!is_in_place(row)) continue;
      const RowEnd end(task, piece.head(row), total.rows[r], facts[r].is_valid);
      const int64_t start = (piece.query(row) * task.heads + piece.head(row)) * size;
      for_each_value(r, [&](int i, int e, int d) {
        write_number(task.result, task.query.format, start + d, end.result(total.value(i, e)));
      });
    }
  }
};

}  // namespace vllm_fork
