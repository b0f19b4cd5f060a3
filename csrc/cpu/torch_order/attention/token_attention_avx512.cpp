// AVX-512: a register holds four sums of each of four keys, or sixteen columns of values.
#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "cpu/torch_order/single_row/eight_sums_avx512.h"
#include "cpu/torch_order/attention/softmax_avx512.h"
#include "cpu/torch_order/attention/token_attention.h"
#include "cpu/torch_order/attention/values_avx512.h"

namespace vllm_fork {
namespace {
namespace avx512 {

constexpr int64_t kKeys = 4;  // at a time, and values
constexpr int64_t kAhead = 12;  // tokens that are brought near before they are needed
constexpr int64_t kLine = 32;   // numbers in what comes from memory at once

// Scores of four keys with `kHeads` queries, to scores[head * kTokenKeys].
template <class Number, int kHeads>
void score(const uint16_t* query, const uint16_t* const* keys, int64_t size, float* scores) {
  __m512 sums[kHeads];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += kLanes) {
    const __m512 a = Number::widen(keys[0] + i), b = Number::widen(keys[1] + i);
    const __m512 c = Number::widen(keys[2] + i), d = Number::widen(keys[3] + i);
    // Four columns of each key: the first four, the next four, ...
    const __m512 ab_low = _mm512_shuffle_f32x4(a, b, 0x44);
    const __m512 ab_high = _mm512_shuffle_f32x4(a, b, 0xee);
    const __m512 cd_low = _mm512_shuffle_f32x4(c, d, 0x44);
    const __m512 cd_high = _mm512_shuffle_f32x4(c, d, 0xee);
    const __m512 parts[] = {
        _mm512_shuffle_f32x4(ab_low, cd_low, 0x88), _mm512_shuffle_f32x4(ab_low, cd_low, 0xdd),
        _mm512_shuffle_f32x4(ab_high, cd_high, 0x88), _mm512_shuffle_f32x4(ab_high, cd_high, 0xdd)};
    for (int h = 0; h < kHeads; ++h) {
      const __m512 q = Number::widen(query + h * size + i);
      sums[h] = _mm512_fmadd_ps(parts[0], _mm512_shuffle_f32x4(q, q, 0x00), sums[h]);
      sums[h] = _mm512_fmadd_ps(parts[1], _mm512_shuffle_f32x4(q, q, 0x55), sums[h]);
      sums[h] = _mm512_fmadd_ps(parts[2], _mm512_shuffle_f32x4(q, q, 0xaa), sums[h]);
      sums[h] = _mm512_fmadd_ps(parts[3], _mm512_shuffle_f32x4(q, q, 0xff), sums[h]);
    }
  }
  const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  for (int h = 0; h < kHeads; ++h) {
    __m512 sum = _mm512_add_ps(sums[h], _mm512_shuffle_ps(sums[h], sums[h], 0x4e));
    sum = _mm512_add_ps(sum, _mm512_shuffle_ps(sum, sum, 0xb1));
    const __m512 four = _mm512_permutexvar_ps(firsts, sum);
    _mm_storeu_ps(scores + h * kTokenKeys, _mm512_castps512_ps128(four));
  }
}

// The score of one key with one query, in eight sums.
inline float score_in_eight(const uint16_t* query, const uint16_t* key, int64_t size) {
  using Lanes = Float16Lanes;
  EightSums sums;
  for (int64_t i = 0; i < size; i += kLanes) {
    sums.add(_mm512_mul_ps(Lanes::widen(query + i), Lanes::widen(key + i)));
  }
  return sums.folded();
}

// Asks for what lies at four tokens to be brought near, which takes as long as many products.
inline void fetch(const uint16_t* const* tokens, int64_t size) {
  for (int64_t i = 0; i < kKeys; ++i) {
    for (int64_t column = 0; column < size; column += kLine) {
      _mm_prefetch(reinterpret_cast<const char*>(tokens[i] + column), _MM_HINT_T0);
    }
  }
}

template <class Number, int kHeads>
void score_all(const uint16_t* query, const uint16_t* const* keys, const uint16_t* const* values,
               int64_t count, int64_t size, float* scores) {
  int64_t k = 0;
  for (; k + kKeys <= count; k += kKeys) {
    if (k + kAhead + kKeys <= count) {
      fetch(keys + k + kAhead, size);
      fetch(values + k + kAhead, size);
    }
    score<Number, kHeads>(query, keys + k, size, scores + k);
  }
  if (k == count) return;
  if constexpr (std::is_same_v<Number, Float16Lanes>) {
    for (; k < count; ++k) {
      for (int h = 0; h < kHeads; ++h) {
        scores[h * kTokenKeys + k] = score_in_eight(query + h * size, keys[k], size);
      }
    }
    return;
  }
  const uint16_t* last[kKeys];  // the scores of those behind the last key are read by nobody
  for (int64_t i = 0; i < kKeys; ++i) last[i] = keys[std::min(k + i, count - 1)];
  score<Number, kHeads>(query, last, size, scores + k);
}

// Adds sixteen columns of the values of `count` tokens, by their weights, to those of each head.
template <int kHeads>
void add_columns(const float* weights, const uint16_t* const* values, int64_t count, int64_t column,
                 int64_t size, float* sums) {
  const auto weight = [&](int head, int64_t token) {
    return _mm512_set1_ps(weights[head * kTokenKeys + token]);
  };
  const auto value = [&](int64_t token) { return Bfloat16Lanes::widen(values[token] + column); };
  __m512 all[kHeads];
  for (int h = 0; h < kHeads; ++h) all[h] = _mm512_loadu_ps(sums + h * size);
  int64_t k = 0;
  for (; k + kKeys <= count; k += kKeys) {
    const __m512 v0 = value(k), v1 = value(k + 1), v2 = value(k + 2), v3 = value(k + 3);
    for (int h = 0; h < kHeads; ++h) {
      const __m512 even = _mm512_fmadd_ps(v2, weight(h, k + 2), _mm512_mul_ps(v0, weight(h, k)));
      const __m512 odd = _mm512_fmadd_ps(v3, weight(h, k + 3), _mm512_mul_ps(v1, weight(h, k + 1)));
      all[h] = _mm512_add_ps(all[h], _mm512_add_ps(even, odd));
    }
  }
  for (int64_t left = count - 1; left >= k; --left) {
    const __m512 v = value(left);
    for (int h = 0; h < kHeads; ++h) all[h] = _mm512_fmadd_ps(v, weight(h, left), all[h]);
  }
  for (int h = 0; h < kHeads; ++h) _mm512_storeu_ps(sums + h * size, all[h]);
}

template <class Number, int kHeads>
void attend(const TokenAttention& given, int64_t first_head) {
  const int64_t size = given.size;
  const uint16_t* query = given.query + first_head * size;
  float* sums = given.scratch;  // [heads, size]
  float* scores = sums + kHeads * size;
  RowState states[kHeads];
  int64_t apart[kHeads];
  for (int h = 0; h < kHeads; ++h) apart[h] = given.columns_apart_of(first_head + h);
  std::fill_n(sums, kHeads * size, 0.0f);
  for (int64_t first = 0; first < given.length; first += kTokenKeys) {
    const int64_t count = std::min(kTokenKeys, given.length - first);
    score_all<Number, kHeads>(query, given.keys + first, given.values + first, count, size, scores);
    for (int h = 0; h < kHeads; ++h) {
      next_weights<Number>(scores + h * kTokenKeys, count, count, given.scale, first == 0, size,
                           states[h], sums + h * size);
    }
    const uint16_t* const* values = given.values + first;
    if constexpr (std::is_same_v<Number, Float16Lanes>) {
      add_all_in_sequence<Number, kHeads, false>(scores, values, count, size, apart, sums);
    } else {
      for (int64_t i = 0; i < size; i += kLanes) {
        add_columns<kHeads>(scores, values, count, i, size, sums + i);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    write_row<Number>(sums + h * size, states[h].total, size, given.out + (first_head + h) * size);
  }
}

template <class Number>
void attend_all(const TokenAttention& given) {
  int64_t h = 0;
  for (; h + 4 <= given.heads; h += 4) attend<Number, 4>(given, h);
  for (; h + 2 <= given.heads; h += 2) attend<Number, 2>(given, h);
  for (; h < given.heads; ++h) attend<Number, 1>(given, h);
}

}  // namespace avx512
}  // namespace

void token_attention_avx512(const TokenAttention& given) {
  given.is_float16 ? avx512::attend_all<avx512::Float16Lanes>(given)
                   : avx512::attend_all<avx512::Bfloat16Lanes>(given);
}

}  // namespace vllm_fork
