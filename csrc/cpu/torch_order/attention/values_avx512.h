// AVX-512: values of tokens, added one after the other, as MKL does in float16 and float32.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/torch_order/attention/softmax_avx512.h"
#include "cpu/torch_order/attention/token_attention.h"

namespace vllm_fork {
namespace {
namespace avx512 {

// Sixteen columns of some tokens' values, and the weights of a head.
template <class Number>
struct WeightedValues {
  const float* weights;
  const typename Number::Bits* const* values;
  int64_t column;

  __m512 at(int64_t token) const {
    return _mm512_mul_ps(Number::widen(values[token] + column), _mm512_set1_ps(weights[token]));
  }
};

// Columns that MKL adds apart from the others: of eight tokens four one after the other, and then the
// sum of the next four.
template <class Number>
__m512 added_apart(const WeightedValues<Number>& given, int64_t count, __m512 sum) {
  int64_t k = 0;
  for (; k + 8 <= count; k += 8) {
    for (int64_t i = 0; i < 4; ++i) sum = _mm512_add_ps(sum, given.at(k + i));
    __m512 four = given.at(k + 4);
    for (int64_t i = 5; i < 8; ++i) four = _mm512_add_ps(four, given.at(k + i));
    sum = _mm512_add_ps(sum, four);
  }
  for (; k < count; ++k) sum = _mm512_add_ps(sum, given.at(k));
  return sum;
}

// Adds kVectors * 16 columns of the values of `count` tokens, by their weights, to those of each head.
//
//   apart   of each head, the first columns that are added apart, fewer than sixteen
//   sums    [kHeads], `size` from one head to the next
template <class Number, int kHeads, int kVectors, bool kIsFused>
void add_in_sequence(const float* weights, const typename Number::Bits* const* values,
                     int64_t count, int64_t column, int64_t size, const int64_t* apart,
                     float* sums) {
  __m512 all[kHeads][kVectors], before[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) all[h][v] = _mm512_loadu_ps(sums + h * size + v * kLanes);
    before[h] = all[h][0];
  }
  for (int64_t k = 0; k < count; ++k) {
    __m512 value[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      value[v] = Number::widen(values[k] + column + v * kLanes);
    }
    for (int h = 0; h < kHeads; ++h) {
      const __m512 weight = _mm512_set1_ps(weights[h * kTokenKeys + k]);
      for (int v = 0; v < kVectors; ++v) {
        all[h][v] = kIsFused ? _mm512_fmadd_ps(value[v], weight, all[h][v])
                             : _mm512_add_ps(all[h][v], _mm512_mul_ps(value[v], weight));
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    if (apart[h] > 0) {
      const WeightedValues<Number> own{weights + h * kTokenKeys, values, column};
      const auto first = static_cast<__mmask16>((1 << apart[h]) - 1);
      all[h][0] = _mm512_mask_mov_ps(all[h][0], first, added_apart(own, count, before[h]));
    }
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(sums + h * size + v * kLanes, all[h][v]);
  }
}

// All columns, of which the first ones of a head may be added apart. Products are not rounded before
// they are added where they are fused.
template <class Number, int kHeads, bool kIsFused>
void add_all_in_sequence(const float* weights, const typename Number::Bits* const* values,
                         int64_t count, int64_t size, const int64_t* apart, float* sums) {
  constexpr int kVectors = 4 / kHeads > 1 ? 4 / kHeads : 1;
  constexpr int64_t none[kHeads] = {};
  int64_t i = 0;
  for (; i + kVectors * kLanes <= size; i += kVectors * kLanes) {
    add_in_sequence<Number, kHeads, kVectors, kIsFused>(weights, values, count, i, size,
                                                        i == 0 ? apart : none, sums + i);
  }
  for (; i < size; i += kLanes) {
    add_in_sequence<Number, kHeads, 1, kIsFused>(weights, values, count, i, size,
                                                 i == 0 ? apart : none, sums + i);
  }
}

}  // namespace avx512
}  // namespace
}  // namespace vllm_fork
