// AVX-512: a register holds sixteen keys, or sixteen columns of values, of one of eight queries.
#include "cpu/torch_order/attention/prompt_attention.h"

#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "cpu/torch_order/attention/softmax_avx512.h"
#include "cpu/torch_order/attention/transpose_avx512.h"

namespace vllm_fork {
namespace {
namespace avx512 {

constexpr int64_t kRows = kPromptRows;

// From one column of keys to the next: 512 floats, and some so that columns do not share the lines of
// a cache.
constexpr int64_t kKeyStride = kPromptKeys + kLanes;

// Keys and values of up to 512 tokens, as float32.
template <class Number>
struct Block {
  float* keys;            // [size, kKeyStride]
  float* values;          // [kPromptKeys, size]
  bool is_finite = true;  // the values

  // The scores of keys behind the last one are read by nobody.
  void read(const PromptAttention& given, int64_t first, int64_t count) {
    for (int64_t t = 0; t < count; t += kLanes) {
      for (int64_t i = 0; i < given.size; i += kLanes) {
        write_columns<Number>(given.keys + first + t, std::min(kLanes, count - t), i, kKeyStride,
                              keys + i * kKeyStride + t);
      }
    }
    is_finite = true;
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t i = 0; i < given.size; i += kLanes) {
        const __m512 value = Number::widen(given.values[first + t] + i);
        const __m512 difference = _mm512_sub_ps(value, value);  // NaN of what is not finite
        is_finite &= _mm512_cmp_ps_mask(difference, difference, _CMP_UNORD_Q) == 0;
        _mm512_storeu_ps(values + t * given.size + i, value);
      }
    }
  }
};

// Scores of eight queries [size] with kVectors * 16 keys.
template <int kVectors>
inline void score(const float* queries, const float* keys, int64_t size, float* scores) {
  __m512 sums[kRows][kVectors];
  for (auto& row : sums) {
    for (auto& sum : row) sum = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < size; ++i) {
    __m512 key[kVectors];
    for (int v = 0; v < kVectors; ++v) key[v] = _mm512_loadu_ps(keys + i * kKeyStride + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const __m512 query = _mm512_set1_ps(queries[r * size + i]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_fmadd_ps(query, key[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(scores + r * kPromptKeys + v * kLanes, sums[r][v]);
    }
  }
}

void score_all(const float* queries, const float* keys, int64_t count, int64_t size,
               float* scores) {
  int64_t k = 0;
  for (; k + kLanes < count; k += 2 * kLanes) score<2>(queries, keys + k, size, scores + k);
  if (k < count) score<1>(queries, keys + k, size, scores + k);
}

// Adds kVectors * 16 columns of the values of tokens, by their weights, to those of eight rows.
//
//   sums    [kRows, size], of these columns
//   block   tokens whose sum is added at once, of `count`
template <int kVectors>
inline void add_columns(const float* weights, const float* values, int64_t count, int64_t block,
                        int64_t size, float* sums) {
  for (int64_t first = 0; first < count; first += block) {
    const int64_t last = std::min(first + block, count);
    __m512 all[kRows][kVectors];
    for (auto& row : all) {
      for (auto& sum : row) sum = _mm512_setzero_ps();
    }
    for (int64_t k = first; k < last; ++k) {
      __m512 value[kVectors];
      for (int v = 0; v < kVectors; ++v) value[v] = _mm512_loadu_ps(values + k * size + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const __m512 weight = _mm512_set1_ps(weights[r * kPromptKeys + k]);
        for (int v = 0; v < kVectors; ++v) all[r][v] = _mm512_fmadd_ps(weight, value[v], all[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        float* sum = sums + r * size + v * kLanes;
        _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), all[r][v]));
      }
    }
  }
}

void add_values(const float* weights, const float* values, int64_t count, int64_t block,
                int64_t size, float* sums) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    add_columns<2>(weights, values + i, count, block, size, sums + i);
  }
  if (i < size) add_columns<1>(weights, values + i, count, block, size, sums + i);
}

// Eight rows of queries, of which those before the first one that is meant, and behind the last,
// are zeros.
template <class Number>
struct Tile {
  const PromptAttention& given;
  float* queries;  // [kRows, size]
  float* scores;   // [kRows, kPromptKeys]

  bool is_meant(int64_t row) const { return given.first <= row && row < given.last; }

  void read(int64_t head, int64_t begin) {
    for (int64_t r = 0; r < kRows; ++r) {
      float* own = queries + r * given.size;
      if (!is_meant(begin + r)) {
        std::fill_n(own, given.size, 0.0f);
        continue;
      }
      const uint16_t* row =
          given.query + (begin + r) * given.query_token + head * given.query_head;
      for (int64_t i = 0; i < given.size; i += kLanes) {
        _mm512_storeu_ps(own + i, Number::widen(row + i));
      }
    }
  }

  // Attends from rows to the keys of a block, that begins at token `first`.
  void attend(const Block<Number>& block, int64_t begin, int64_t first, RowState* states,
              float* sums) {
    const int64_t count = std::min(kPromptKeys, given.length - first);
    const int64_t seen = std::min(count, begin + kRows - first);  // by the last row
    // What is not seen has a weight of zero, which changes no sum but of values that are not finite.
    const int64_t added = block.is_finite ? seen : count;
    score_all(queries, block.keys, seen, given.size, scores);
    for (int64_t r = 0; r < kRows; ++r) {
      float* own = scores + r * kPromptKeys;
      const int64_t of_row = std::min(count, begin + r - first + 1);
      next_weights<Number>(own, count, of_row, given.scale, first == 0, given.size, states[r],
                           sums + r * given.size);
      std::fill(own + of_row, own + std::max(of_row, added), 0.0f);
    }
    add_values(scores, block.values, added, block_of(count), given.size, sums);
  }
};

template <class Number>
void attend_prompt(const PromptAttention& given) {
  const int64_t size = given.size;
  const int64_t begin = given.first / kRows * kRows;
  const int64_t tiles = (given.last - begin + kRows - 1) / kRows;
  Block<Number> block{given.scratch, given.scratch + kKeyStride * size};
  Tile<Number> tile{given, block.values + kPromptKeys * size, nullptr};
  tile.scores = tile.queries + kRows * size;
  float* all_sums = tile.scores + kRows * kPromptKeys;  // [heads, tiles, kRows, size]
  std::vector<RowState> states(given.heads * tiles * kRows);
  std::fill_n(all_sums, given.heads * tiles * kRows * size, 0.0f);
  for (int64_t first = 0; first < given.last; first += kPromptKeys) {
    block.read(given, first, std::min(kPromptKeys, given.length - first));
    for (int64_t i = 0; i < given.heads * tiles; ++i) {
      const int64_t row = begin + i % tiles * kRows;
      if (row < first) continue;
      tile.read(i / tiles, row);
      tile.attend(block, row, first, &states[i * kRows], all_sums + i * kRows * size);
    }
  }
  for (int64_t i = 0; i < given.heads * tiles * kRows; ++i) {
    const int64_t head = i / (tiles * kRows), row = begin + i % (tiles * kRows);
    if (!tile.is_meant(row)) continue;
    write_row<Number>(all_sums + i * size, states[i].total, size,
                      given.out + row * given.out_token + head * size);
  }
}

}  // namespace avx512
}  // namespace

void prompt_attention_avx512(const PromptAttention& given) {
  given.is_float16 ? avx512::attend_prompt<avx512::Float16Lanes>(given)
                   : avx512::attend_prompt<avx512::Bfloat16Lanes>(given);
}

}  // namespace vllm_fork
