// Attention over a paged cache of integers, for prefill and decode.
//
// Specification: docs/numerics/attention.md. A block of 4 warps attends, for 16 queries of a
// sequence that share a head of keys, to 64 tokens at a time: each warp weighs 16 of the tokens, and
// then adds up the values of every fourth 8 elements of a head. All products are exact, on tensor
// cores; what is rounded is in registers of the lane that owns it, in the specification's order.
#pragma once

#include "attention_parts.cuh"
#include "matrix_instructions.cuh"

namespace vllm_fork {

constexpr int kQueries = 16;  // the rows of a tensor core's product
constexpr int kWarps = kBlockTokens / kTileTokens;
constexpr int kAttentionThreads = kWarps * kWarp;
constexpr int kStepWords = 8;  // of 4 elements, that one product adds up
constexpr int kQuerySteps = static_cast<int>(kLargestHead) / (4 * kStepWords);
constexpr int kWeightSteps = kBlockTokens / (4 * kStepWords);
constexpr int kElements = 8;  // of the result, that one product gives

// A left operand of products: of each lane the four words.
struct alignas(16) LeftOperand {
  uint32_t words[kWarp][4];

  // Word `word` of row `row`, counted from the operand's first column.
  __device__ __forceinline__ uint32_t& at(int row, int word) {
    return words[row % 8 * 4 + word % 4][row / 8 + word / 4 * 2];
  }
};

struct QueryFacts {
  SeenTokens seen;
  float factor;
  float slope;
  bool is_valid;
};

struct AttentionMemory {
  LeftOperand queries[2][kQuerySteps];  // upper and lower digits
  LeftOperand weights[2][kWeightSteps];
  QueryFacts facts[kQueries];
  // What a warp has found about its tokens, and where their digits are.
  const uint8_t* tiles[kWarps];
  int32_t exponents[kWarps][kQueries];
  int32_t value_exponents[kWarps][kQueries];
  int32_t sums[kWarps][kQueries];
  bool is_invalid[kWarps][kQueries];
};

__device__ __forceinline__ int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

// Of the four lanes that have parts of the same rows.
template <typename T, typename Combine>
__device__ __forceinline__ T combine_quad(T value, const Combine& combine) {
  value = combine(value, __shfl_xor_sync(kAllLanes, value, 1));
  return combine(value, __shfl_xor_sync(kAllLanes, value, 2));
}

__device__ __forceinline__ uint32_t word_at(const uint8_t* address) {
  return *reinterpret_cast<const uint32_t*>(address);
}

__device__ __forceinline__ uint32_t byte_of(uint32_t word, int i) { return word >> 8 * i & 255; }

// The low bytes of four integers.
__device__ __forceinline__ uint32_t packed(const int32_t (&integers)[4]) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) word |= (static_cast<uint32_t>(integers[i]) & 255) << 8 * i;
  return word;
}

// The digits of four integers, in words.
struct DigitWords {
  uint32_t upper;
  uint32_t lower;

  __device__ __forceinline__ explicit DigitWords(const int32_t (&integers)[4]) {
    int32_t high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) high[i] = upper_digit(integers[i]);
    upper = packed(high);
    lower = packed(integers);
  }
};

// Sums of 16 rows and 8 columns: of products of both digits on the left with one on the right.
struct DigitSums {
  int32_t upper[4] = {};
  int32_t lower[4] = {};

  __device__ __forceinline__ int32_t joined_digits(int i) const { return upper[i] * 256 + lower[i]; }
};

// Sums with both digits on the right.
struct ProductSums {
  DigitSums upper;
  DigitSums lower;

  __device__ __forceinline__ float product(int i) const {
    return joined(upper.joined_digits(i), lower.joined_digits(i));
  }

  // Of a word from each of the two halves of the columns of the left operand.
  __device__ __forceinline__ void add(const LeftOperand& left_upper, const LeftOperand& left_lower,
                                      const uint32_t (&right_upper)[2],
                                      const uint32_t (&right_lower)[2]) {
    const auto lane = static_cast<int>(threadIdx.x) % kWarp;
    Fragments fragments;
#pragma unroll
    for (int i = 0; i < 4; ++i) fragments.a[i] = left_upper.words[lane][i];
    multiply(upper.upper, fragments, right_upper);
    multiply(lower.upper, fragments, right_lower);
#pragma unroll
    for (int i = 0; i < 4; ++i) fragments.a[i] = left_lower.words[lane][i];
    multiply(upper.lower, fragments, right_upper);
    multiply(lower.lower, fragments, right_lower);
  }

 private:
  static __device__ __forceinline__ void multiply(int32_t (&sums)[4], Fragments& fragments,
                                                  const uint32_t (&right)[2]) {
    fragments.b[0] = right[0];
    fragments.b[1] = right[1];
    multiply_add(sums, fragments);
  }
};

// The rows of a block of threads: queries of a sequence that share a head of keys, in the order of
// tokens and then of heads.
struct QueryPiece {
  int64_t shared;       // heads that share one of keys
  int64_t key_head;
  int64_t start;        // the row of the sequence's first query
  int64_t first_token;  // its position
  int64_t first;        // query of this piece
  int64_t count;        // of rows of the sequence; 0 or less if there are none for this piece
  const int32_t* pages;

  __device__ __forceinline__ explicit QueryPiece(const PagedAttention& task)
      : shared(task.heads / task.key_heads), key_head(blockIdx.y) {
    // Sequence s has pieces from starts[s] * shared / 16 + s on, which is room enough.
    const int32_t* starts = task.query_starts;
    const int64_t heads = shared;
    const auto first_piece = [starts, heads](int64_t s) {
      return starts[s] * heads / kQueries + s;
    };
    const int64_t piece = blockIdx.x;
    const int64_t sequence = sequence_at(piece, task.sequences, first_piece);
    start = starts[sequence];
    const int64_t tokens = starts[sequence + 1] - start;
    first_token = task.lengths[sequence] - tokens;
    first = (piece - first_piece(sequence)) * kQueries;
    count = tokens * shared;
    pages = task.pages + sequence * task.width;
  }

  __device__ __forceinline__ bool has(int row) const {
    return 0 <= first + row && first + row < count;
  }
  __device__ __forceinline__ int64_t position(int row) const {
    return first_token + (first + row) / shared;
  }
  __device__ __forceinline__ int64_t query(int row) const { return start + (first + row) / shared; }
  __device__ __forceinline__ int64_t head(int row) const {
    return key_head * shared + (first + row) % shared;
  }
  __device__ __forceinline__ int last_row() const {
    return static_cast<int>(count - first < kQueries ? count - first : kQueries) - 1;
  }

  // Whether there is such a query.
  __device__ __forceinline__ bool is_in_place(int row, const PagedAttention& task) const {
    return has(row) && query(row) >= 0 && query(row) < task.queries;
  }

  __device__ __forceinline__ SeenTokens seen_by(int row, const PagedAttention& task) const {
    return tokens_seen(is_in_place(row, task) ? position(row) : -1, task.window);
  }

  // From the first token that any row sees to the last one.
  __device__ __forceinline__ SeenTokens seen_by_any(const PagedAttention& task) const {
    return {seen_by(0, task).first, seen_by(last_row(), task).last};
  }
};

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

template <int kTiles>
struct Attention {
  const PagedAttention& task;
  const QueryPiece& piece;
  AttentionMemory& memory;
  int32_t size;    // of a head
  int32_t digits;  // of a tile: between upper and lower ones
  int32_t values;  // from a tile's start
  int lane;
  int warp;
  int group;  // the first of the lane's two rows; the second is 8 further on
  int place;  // among the lanes of the same rows
  float cap;
  SeenTokens seen;  // by any of the rows
  QueryFacts facts[2];

  __device__ __forceinline__ Attention(const PagedAttention& paged, const QueryPiece& rows,
                                       const SeenTokens& seen_by_any, AttentionMemory& shared)
      : task(paged),
        piece(rows),
        memory(shared),
        size(static_cast<int32_t>(paged.cache.head_size)),
        digits(static_cast<int32_t>(TileLayout{size}.digits())),
        values(static_cast<int32_t>(TileLayout{size}.value_place(0, 0))),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        warp(static_cast<int>(threadIdx.x) / kWarp),
        group(lane / 4),
        place(lane % 4),
        cap(score_rule(paged.scale, paged.soft_cap, 0.0f, 0).cap),
        seen(seen_by_any) {
    for (int i = 0; i < kQueries / kWarps; ++i) prepare_query(warp * (kQueries / kWarps) + i);
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

  // --- queries ---------------------------------------------------------------------------------

  __device__ __forceinline__ void prepare_query(int row) {
    const bool is_there = is_in_place(row);
    const int64_t head = piece.head(row);
    const int64_t start =
        is_there ? piece.query(row) * task.query.row_stride + head * task.query.head_stride : 0;
    const RowWords words(task.query.start, task.query.format, start, is_there ? size : 0);
    const uint32_t scale = words.scale();
    const float factor = to_integers(scale);
#pragma unroll
    for (int w = 0; w < kRowWords; ++w) {
      int32_t integers[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) integers[j] = row_integer(words.x[w][j], scale, factor);
      const DigitWords digits(integers);
      const int word = lane + w * kWarp;
      memory.queries[0][word / kStepWords].at(row, word % kStepWords) = digits.upper;
      memory.queries[1][word / kStepWords].at(row, word % kStepWords) = digits.lower;
    }
    if (lane != 0) return;
    const SeenTokens own = piece.seen_by(row, task);
    const float slope = task.slopes == nullptr || !is_there ? 0.0f : task.slopes[head];
    const ScoreRule rule = score_rule(task.scale, task.soft_cap, slope, task.window);
    const bool is_valid = scale != kInvalidScale && own.are_valid(task);
    memory.facts[row] = {own, rule.factor * unit_of(scale), rule.slope, is_valid};
  }

  // --- tokens ----------------------------------------------------------------------------------

  // The warp's tile of the block of tokens from `first` on, or nothing if no row sees it.
  __device__ __forceinline__ const uint8_t* find(int32_t first, const uint8_t** scales) const {
    const int32_t token = first + warp * kTileTokens;
    *scales = nullptr;
    if (token > seen.last || token + kTileTokens <= seen.first) return nullptr;
    const int32_t tile = token / kTileTokens;
    const auto page_tiles = static_cast<int32_t>(task.cache.page_tiles);
    const int32_t block = tile / page_tiles;
    const int32_t page = block < task.width ? piece.pages[block] : -1;
    if (page < 0 || page >= task.cache.pages) return nullptr;
    const TilePlace found(task.cache, page, tile % page_tiles, piece.key_head);
    *scales = found.scales;
    return found.digits;
  }

  // Scores of a lane's two rows and of the four tokens 4 * place.. of its warp's tile.
  struct Scores {
    float fractions[2][4];
    int32_t exponents[2][4];
    int32_t value_scales[4];
  };

  __device__ __forceinline__ void multiply_keys(const uint8_t* keys, ProductSums (&sums)[2]) const {
    // Column g of product j is token 4 * (g / 2) + 2 * j + g % 2, so that sums of four tokens in a
    // row come to one lane.
    constexpr int kKeyWord = 4 * kTileTokens;  // bytes of 4 elements of all tokens
    const uint8_t* own = keys + place * kKeyWord + 4 * (group / 2 * 4 + group % 2);
    const int steps = (size + 4 * kStepWords - 1) / (4 * kStepWords);
    __syncwarp();  // for the products
#pragma unroll 2
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        // In a last step of half the elements, those of the query are 0.
        const uint8_t* first = own + step * kStepWords * kKeyWord + 4 * 2 * j;
        const uint8_t* second = first + kStepWords / 2 * kKeyWord;
        const uint32_t upper[2] = {word_at(first), word_at(second)};
        const uint32_t lower[2] = {word_at(first + digits), word_at(second + digits)};
        sums[j].add(memory.queries[0][step], memory.queries[1][step], upper, lower);
      }
    }
  }

  __device__ __forceinline__ Scores score_tokens(int32_t first) {
    const uint8_t* scales;
    const uint8_t* keys = find(first, &scales);
    if (lane == 0) memory.tiles[warp] = keys;
    ProductSums sums[2];
    uint32_t key_scales = ~0u;  // of a tile that should be there and is not: all invalid
    uint32_t value_scales = ~0u;
    if (keys != nullptr) {
      multiply_keys(keys, sums);
      key_scales = word_at(scales + 4 * place);
      value_scales = word_at(scales + kTileTokens + 4 * place);
    }
    Scores scores;
    bool is_invalid[2] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int32_t token = first + warp * kTileTokens + 4 * place + k;
      const uint32_t key_scale = byte_of(key_scales, k);
      const uint32_t value_scale = byte_of(value_scales, k);
      scores.value_scales[k] = static_cast<int32_t>(value_scale);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float product = sums[k / 2].product(2 * r + k % 2);
        const Weight weight(score(product, unit_of(key_scale), facts[r].factor, cap,
                                  facts[r].slope,
                                  static_cast<float>(token - facts[r].seen.last)));
        const bool is_seen = token >= facts[r].seen.first && token <= facts[r].seen.last;
        scores.fractions[r][k] = weight.fraction;
        scores.exponents[r][k] = is_seen ? weight.exponent : kUnseen;
        is_invalid[r] |=
            is_seen && (key_scale == kInvalidScale || value_scale == kInvalidScale);
      }
    }
    tell(scores, is_invalid);
    return scores;
  }

  // Tells the other warps what is largest among the warp's tokens.
  __device__ __forceinline__ void tell(const Scores& scores, const bool (&is_invalid)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
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

  __device__ __forceinline__ ProductSums multiply_values(const uint8_t* const (&tiles)[kWarps],
                                                         int elements) const {
    const int own = values + place * 4 * size + 4 * (elements + group);
    ProductSums sums;
    __syncwarp();  // for the products
#pragma unroll
    for (int step = 0; step < kWeightSteps; ++step) {
      uint32_t upper[2];
      uint32_t lower[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint8_t* tile = tiles[2 * step + i];
        upper[i] = tile == nullptr ? 0 : word_at(tile + own);
        lower[i] = tile == nullptr ? 0 : word_at(tile + own + digits);
      }
      sums.add(memory.weights[0][step], memory.weights[1][step], upper, lower);
    }
    return sums;
  }

  // --- a block of tokens -------------------------------------------------------------------------

  __device__ __forceinline__ void add_block(int32_t first, GatheredTiles<kTiles>& gathered) {
    const Scores scores = score_tokens(first);
    __syncthreads();
    BlockExponents largest[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = largest_exponents(r);
      weigh(scores, largest[r], r);
    }
    const uint8_t* tiles[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i) tiles[i] = memory.tiles[i];
    __syncthreads();
    float kept[2] = {};
    float unit[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) gather_sums(largest[r], r, gathered.rows[r], kept[r], unit[r]);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (!has(i)) continue;
      const ProductSums sums = multiply_values(tiles, elements_of(i));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = e / 2;
        const float value = gathered.values[i][e] * kept[r] + sums.product(e) * unit[r];
        gathered.values[i][e] = largest[r].weight == kUnseen ? gathered.values[i][e] : value;
      }
    }
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
    const int32_t end = start + kSuperblockTokens;
    const int32_t earliest = seen.first / kBlockTokens * kBlockTokens;
    for (int32_t block = larger(start, earliest); block < end && block <= seen.last;
         block += kBlockTokens) {
      add_block(block, gathered);
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
      float kept = 1.0f;
      const bool has_sink = task.sinks != nullptr;
      if (has_sink) {
        const Sink sink(task.sinks[piece.head(row)]);
        facts[r].is_valid = facts[r].is_valid && sink.is_valid;
        kept = merge(total.rows[r], sink.gathered).kept;
      }
      const float sum = facts[r].is_valid ? total.rows[r].sum : float_of(kNanBits);
      const int64_t start = (piece.query(row) * task.heads + piece.head(row)) * size;
      for_each_value(r, [&](int i, int e, int d) {
        float value = total.value(i, e);
        if (has_sink) value = value * kept + 0.0f;  // -0 becomes 0
        write_number(task.result, task.query.format, start + d, value / sum);
      });
    }
  }
};

// Block (x, y, z) has piece x of the queries and head y of the keys; with parts, of the superblocks
// those that are z modulo gridDim.z. How many there are, only the lengths of sequences say: for many
// blocks there is nothing to do, and they end before they look at queries.
template <int kTiles, bool kHasParts>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_kernel(PagedAttention task, int64_t splits, float* parts) {
  const QueryPiece piece(task);
  if (!piece.has(0)) return;
  const SeenTokens seen = piece.seen_by_any(task);
  const int32_t last = seen.last / kSuperblockTokens;
  int32_t superblock = seen.first / kSuperblockTokens;
  if (kHasParts) {
    const auto blocks = static_cast<int32_t>(gridDim.z);
    const auto own = static_cast<int32_t>(blockIdx.z);
    superblock += (own + blocks - superblock % blocks) % blocks;
    if (superblock > last) return;
    Attention<kTiles> attention(task, piece, seen, block_shared<AttentionMemory>());
    for (; superblock <= last; superblock += blocks) {
      GatheredTiles<kTiles> gathered;
      attention.add_superblock(superblock, gathered);
      attention.write_part(gathered, parts, splits, superblock);
    }
    return;
  }
  Attention<kTiles> attention(task, piece, seen, block_shared<AttentionMemory>());
  TotalTiles<kTiles> total;
  for (; superblock <= last; ++superblock) {
    GatheredTiles<kTiles> gathered;
    attention.add_superblock(superblock, gathered);
    total.add(gathered);
  }
  attention.write_result(total);
}

// --- launchers ---------------------------------------------------------------------------------

inline int64_t num_pieces(const PagedAttention& task) {
  return task.queries * (task.heads / task.key_heads) / kQueries + task.sequences;
}

int64_t attention_splits(const PagedAttention& task) {
  constexpr int64_t kEnoughBlocks = 512;
  constexpr int64_t kMostPartFloats = int64_t{64} << 20;  // 256 MiB
  const int64_t room = task.width * task.cache.page_tiles * kTileTokens;
  // What a window lets the queries of a piece see, wherever it begins.
  const int64_t seen = task.window > 0 ? task.window + kQueries + kSuperblockTokens : room;
  const int64_t tokens = seen < room ? seen : room;
  const int64_t splits = (tokens + kSuperblockTokens - 1) / kSuperblockTokens;
  const bool is_worth_it = splits > 1 && num_pieces(task) * task.key_heads < kEnoughBlocks;
  return is_worth_it && attention_part_floats(task, splits) <= kMostPartFloats ? splits : 1;
}

int64_t attention_part_floats(const PagedAttention& task, int64_t splits) {
  return splits == 1 ? 0 : task.queries * task.heads * splits * (task.cache.head_size + 3);
}

// How many blocks of threads share the superblocks of a piece and head: not one for each if that is
// more than keeps a GPU busy, since most sequences are shorter than their tables have room for.
inline int64_t blocks_of_splits(const PagedAttention& task, int64_t splits) {
  constexpr int64_t kManyBlocks = 4096;
  const int64_t others = num_pieces(task) * task.key_heads;
  const int64_t wanted = (kManyBlocks + others - 1) / others;
  return wanted < splits ? wanted : splits;
}

template <int kTiles>
cudaError_t launch_attention(const PagedAttention& task, int64_t splits, float* parts,
                             cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned int>(num_pieces(task)),
                  static_cast<unsigned int>(task.key_heads),
                  static_cast<unsigned int>(blocks_of_splits(task, splits)));
  const auto kernel =
      splits == 1 ? attention_kernel<kTiles, false> : attention_kernel<kTiles, true>;
  return launch(grid, kAttentionThreads, 0, stream, kernel, task, splits, parts);
}

cudaError_t launch_portable_attention(const PagedAttention& task, int64_t splits, float* parts,
                                      cudaStream_t stream) {
  if (task.queries == 0 || task.sequences == 0) return cudaSuccess;
  constexpr int64_t kElementsOfTile = kElements * kWarps;
  const int64_t size = task.cache.head_size;
  const cudaError_t error = size <= 2 * kElementsOfTile
                                ? launch_attention<2>(task, splits, parts, stream)
                            : size <= 4 * kElementsOfTile
                                ? launch_attention<4>(task, splits, parts, stream)
                                : launch_attention<8>(task, splits, parts, stream);
  if (error != cudaSuccess || splits == 1) return error;
  const dim3 grid(static_cast<unsigned int>(task.queries), static_cast<unsigned int>(task.heads));
  return launch(grid, static_cast<unsigned int>(size), 0, stream, merge_parts_kernel, task, splits,
                parts);
}

}  // namespace vllm_fork
