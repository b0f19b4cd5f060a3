// Attention of up to 16 queries of one sequence and one head of keys and values.
//
// The sums of products are integers, so each instruction set takes its own way through them:
//
//   Isa::kRows                  how many queries share what is read of a tile
//   Isa::products<count>(...)   16 sums of each of `count` rows, see CoefficientRow and Tiles
//
// The rest is plain loops of which the compiler makes vectors. Everything here has internal linkage
// (see portable/macros.h for what goes wrong otherwise).
#pragma once

#include <algorithm>

#include "cpu/portable/attention/attention_scratch.h"
#include "cpu/portable/rows/row_loops.h"
#include "portable/attention.h"

namespace vllm_fork {
namespace {

constexpr int kLanes = 16;
constexpr int kTilesOfBlock = kBlockTokens / kTileTokens;

// Digits of several tiles. Sum i of a row with coefficients c is that of
// c[4 * s + j] * digits[s][4 * i + j] over steps s and j in 0..3, where step s is at
// (s % steps) * stride of tile s / steps.
struct Tiles {
  const int8_t* upper[kTilesOfBlock];
  const int8_t* lower[kTilesOfBlock];
  int count;
  int64_t steps;
  int64_t stride;
};

// Where the sums of a row go: 16 with the upper digits and 16 with the lower ones.
struct Sums {
  int32_t* upper;
  int32_t* lower;
};

template <typename Isa>
struct Attention {
  // What a row of weights says about itself.
  struct BlockWeights {
    int32_t exponent;  // of the largest weight
    int32_t value_exponent;  // of the largest weight times its value's scale
    int32_t sum;
  };

  const AttentionTask& task;
  const AttentionScratch& scratch;
  int64_t size;  // of a head

  const QueryFacts& first_facts() const { return scratch.facts[0]; }
  const QueryFacts& last_facts() const { return scratch.facts[task.count - 1]; }

  Sums sums(int64_t r, int64_t first) const {
    int32_t* start = scratch.products + r * 2 * scratch.width + first;
    return {start, start + scratch.width};
  }

  void run() {
    for (int64_t r = 0; r < task.count; ++r) prepare_query(r);
    const int64_t first = first_facts().first / kSuperblockTokens;
    const int64_t last = last_facts().last / kSuperblockTokens;
    for (int64_t s = first; s <= last; ++s) add_superblock(s * kSuperblockTokens);
    for (int64_t r = 0; r < task.count; ++r) finish(r);
  }

  void prepare_query(int64_t r) {
    const float* query_row = task.queries + r * size;
    const uint32_t scale = RowLoops<Isa>::quantise(query_row, scratch.queries[r], size);
    const int64_t query = task.first_query + r;
    const ScoreRule& rule = task.rules[query % task.heads];
    const int64_t last = task.first_token + query / task.heads;
    const int64_t first = rule.window > 0 ? std::max<int64_t>(0, last - rule.window + 1) : 0;
    scratch.is_valid[r] = scale != kInvalidScale;
    scratch.facts[r] = {first, last, &rule, rule.factor * unit_of(scale)};
    scratch.total.clear(r);
  }

  void add_superblock(int64_t start) {
    for (int64_t r = 0; r < task.count; ++r) scratch.superblock.clear(r);
    const int64_t end = std::min(start + kSuperblockTokens, last_facts().last + 1);
    const int64_t first = std::max(start, first_facts().first / kBlockTokens * kBlockTokens);
    for (int64_t block = first; block < end; block += kBlockTokens) add_block(block);
    for (int64_t r = 0; r < task.count; ++r) merge_superblock(r);
  }

  void merge_superblock(int64_t r) {
    const Gathered& coming = scratch.superblock.sums[r];
    if (coming.exponent == kUnseen) return;
    Gathered& there = scratch.total.sums[r];
    const Rescaling by(there.exponent, coming.exponent);
    float* __restrict values = scratch.total.values_of(r);
    const float* __restrict added = scratch.superblock.values_of(r);
    there.exponent = by.exponent;
    there.sum = there.sum * by.kept + coming.sum * by.added;
    for (int64_t d = 0; d < size; ++d) values[d] = values[d] * by.kept + added[d] * by.added;
  }

  // A block of tokens: its tiles, wherever they are in the cache, and what their scales mean.
  struct Block {
    int64_t first;  // token
    int count;      // of tiles
    const int8_t* digits[kTilesOfBlock];
    alignas(64) uint8_t key_bytes[kBlockTokens];
    alignas(64) uint8_t value_bytes[kBlockTokens];
    alignas(64) float key_units[kBlockTokens];
    alignas(64) int32_t value_scales[kBlockTokens];
    alignas(64) int32_t is_invalid[kBlockTokens];
  };

  void add_block(int64_t first) {
    const int64_t end = std::min(first + kBlockTokens, last_facts().last + 1);
    Block block{};  // scales of tiles that are not there are 0
    block.first = first;
    block.count = static_cast<int>((end - first + kTileTokens - 1) / kTileTokens);
    for (int i = 0; i < block.count; ++i) find(block, i);
    read_scales(block);
    int64_t r = 0;
    for (; r + Isa::kRows <= task.count; r += Isa::kRows) add_rows<Isa::kRows>(block, r);
    for (; r < task.count; ++r) add_rows<1>(block, r);
  }

  void find(Block& block, int i) const {
    // A page that a window has left behind may be gone; what is in another one does not matter.
    const int64_t first_seen = first_facts().first / kTileTokens;
    const int64_t tile = std::max(block.first / kTileTokens + i, first_seen);
    const uint8_t* page = task.cache + task.pages[tile / task.page_tiles] * task.page_stride;
    const int64_t place = tile % task.page_tiles;
    const TileLayout& layout = task.layout;
    block.digits[i] = reinterpret_cast<const int8_t*>(page) + place * layout.digit_bytes();
    const uint8_t* scales =
        page + task.page_tiles * layout.digit_bytes() + place * layout.scale_bytes();
    std::memcpy(block.key_bytes + i * kTileTokens, scales, kTileTokens);
    std::memcpy(block.value_bytes + i * kTileTokens, scales + kTileTokens, kTileTokens);
  }

  static void read_scales(Block& block) {
    for (int t = 0; t < kBlockTokens; ++t) {
      const uint32_t key = block.key_bytes[t];
      const uint32_t value = block.value_bytes[t];
      block.key_units[t] = unit_of(key);
      block.value_scales[t] = static_cast<int32_t>(value);
      const bool is_invalid = (key == kInvalidScale) | (value == kInvalidScale);
      block.is_invalid[t] = is_invalid ? 1 : 0;
    }
  }

  template <int kCount>
  void add_rows(const Block& block, int64_t row) {
    // Rows come in the order of their tokens: the last sees the latest, the first the earliest.
    if (scratch.facts[row + kCount - 1].last < block.first) return;
    if (scratch.facts[row].first >= block.first + kBlockTokens) return;
    key_products<kCount>(block, row);
    BlockWeights weights[kCount];
    for (int m = 0; m < kCount; ++m) weights[m] = weigh(block, row + m);
    value_products<kCount>(block, row);
    for (int m = 0; m < kCount; ++m) gather(weights[m], row + m);
  }

  template <int kCount>
  void key_products(const Block& block, int64_t row) {
    Sums out[kCount];
    for (int i = 0; i < block.count; ++i) {
      const int8_t* keys = block.digits[i];
      const Tiles tiles{{keys}, {keys + task.layout.digits()}, 1, size / 4, 4 * kTileTokens};
      for (int m = 0; m < kCount; ++m) out[m] = sums(row + m, i * kLanes);
      Isa::template products<kCount>(scratch.queries + row, tiles, out);
    }
  }

  template <int kCount>
  void value_products(const Block& block, int64_t row) {
    Sums out[kCount];
    for (int64_t d = 0; d < size; d += kLanes) {
      Tiles tiles{{}, {}, block.count, 4, 4 * size};
      for (int i = 0; i < block.count; ++i) {
        tiles.upper[i] = block.digits[i] + task.layout.values() + 4 * d;
        tiles.lower[i] = tiles.upper[i] + task.layout.digits();
      }
      for (int m = 0; m < kCount; ++m) out[m] = sums(row + m, d);
      Isa::template products<kCount>(scratch.weights + row, tiles, out);
    }
  }

  // Turns the products of a row into weights.
  BlockWeights weigh(const Block& block, int64_t r) {
    const QueryFacts& query = scratch.facts[r];
    const auto first = static_cast<int32_t>(std::max<int64_t>(0, query.first - block.first));
    const auto last =
        static_cast<int32_t>(std::min<int64_t>(kBlockTokens - 1, query.last - block.first));
    const Sums products = sums(r, 0);
    const ScoreRule how = *query.rule;
    const float factor = query.factor;
    const auto distance = static_cast<int32_t>(block.first - query.last);
    float fractions[kBlockTokens];
    int32_t exponents[kBlockTokens];
    int32_t invalid = 0;
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      const float product = joined(products.upper[t], products.lower[t]);
      const Weight weight(score(product, block.key_units[t], factor, how.cap, how.slope,
                                static_cast<float>(distance + t)));
      const bool is_seen = (t >= first) & (t <= last);
      fractions[t] = weight.fraction;
      exponents[t] = is_seen ? weight.exponent : kUnseen;
      invalid |= is_seen ? block.is_invalid[t] : 0;
    }
    if (invalid != 0) scratch.is_valid[r] = false;
    return weigh(fractions, exponents, block.value_scales, r);
  }

  BlockWeights weigh(const float* fractions, const int32_t* exponents, const int32_t* value_scales,
                     int64_t r) {
    BlockWeights block{kUnseen, kUnseen, 0};
    for (int t = 0; t < kBlockTokens; ++t) {
      const int32_t weighted = exponents[t] + value_scales[t];
      block.exponent = exponents[t] > block.exponent ? exponents[t] : block.exponent;
      block.value_exponent = weighted > block.value_exponent ? weighted : block.value_exponent;
    }
    CoefficientRow& row = scratch.weights[r];
    int16_t* __restrict integers = row.integers;
    for (int t = 0; t < kBlockTokens; ++t) {
      const int32_t weighted = exponents[t] + value_scales[t];
      // Of a token that is not seen both are 0, also where none is seen.
      const bool is_seen = exponents[t] != kUnseen;
      const int32_t in_sum = weight_in_sum(fractions[t], exponents[t] - block.exponent);
      const int32_t of_value = weight_of_value(fractions[t], weighted - block.value_exponent);
      block.sum += is_seen ? in_sum : 0;
      integers[t] = static_cast<int16_t>(is_seen ? of_value : 0);
    }
    row.split(kBlockTokens);
    return block;
  }

  // Adds a block's weighted values to what a row has gathered of the superblock.
  void gather(const BlockWeights& block, int64_t r) {
    if (block.exponent == kUnseen) return;
    Gathered& there = scratch.superblock.sums[r];
    const Rescaling by(there.exponent, block.exponent);
    const Sums products = sums(r, 0);
    const int32_t* __restrict upper = products.upper;
    const int32_t* __restrict lower = products.lower;
    float* __restrict values = scratch.superblock.values_of(r);
    const float unit = power_of_two(unit_of_values(block.value_exponent, by.exponent));
    const float kept = by.kept;
    for (int64_t d = 0; d < size; ++d) {
      values[d] = values[d] * kept + joined(upper[d], lower[d]) * unit;
    }
    const float sum_unit = power_of_two(unit_of_sum(block.exponent, by.exponent));
    there.sum = there.sum * kept + static_cast<float>(block.sum) * sum_unit;
    there.exponent = by.exponent;
  }

  void finish(int64_t r) {
    Gathered& all = scratch.total.sums[r];
    float* __restrict values = scratch.total.values_of(r);
    bool is_valid = scratch.is_valid[r];
    if (task.sinks != nullptr) {
      const float sink = task.sinks[(task.first_query + r) % task.heads];
      is_valid = is_valid && magnitude(sink) < float_of(kInfinityBits);
      add_sink(all, values, is_valid ? sink : 0.0f);
    }
    float* __restrict out = task.out + r * size;
    const float sum = is_valid ? all.sum : float_of(kNanBits);
    for (int64_t d = 0; d < size; ++d) out[d] = values[d] / sum;
  }

  // A token without a value, whose score is given.
  void add_sink(Gathered& all, float* __restrict values, float sink) {
    const Weight weight(bounded_score(sink * kLog2E));
    const Rescaling by(all.exponent, weight.exponent);
    all.exponent = by.exponent;
    all.sum = all.sum * by.kept + weight.fraction * by.added;
    for (int64_t d = 0; d < size; ++d) values[d] = values[d] * by.kept + 0.0f;  // -0 becomes 0
  }
};

}  // namespace
}  // namespace vllm_fork
