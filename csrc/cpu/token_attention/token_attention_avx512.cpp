// AVX-512: a register holds four sums of each of four keys, or sixteen columns of values.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cpu/token_attention/token_attention.h"

namespace vllm_fork {
namespace {
namespace avx512 {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kLanes = 16;
constexpr int64_t kKeys = 4;  // at a time, and values
constexpr int64_t kAhead = 12;  // tokens that are brought near before they are needed
constexpr int64_t kLine = 32;   // numbers in what comes from memory at once

inline __m512 widen(const uint16_t* bits) {
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

// To the nearest bfloat16, ties to even; NaN stays NaN. The bits are the upper half.
inline __m512i rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_set1_epi32(up, is_nan, 0x7fc00000);
}

inline float rounded(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (x != x) return x;
  return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000);
}

// Sums and maxima of sixteen lanes: eight and eight, four and four, two and two, one and one.
template <typename Op>
inline float fold(__m512 x, Op op) {
  x = op(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  x = op(x, _mm512_shuffle_f32x4(x, x, 0xb1));
  x = op(x, _mm512_shuffle_ps(x, x, 0x4e));
  return _mm512_cvtss_f32(op(x, _mm512_shuffle_ps(x, x, 0xb1)));
}

// The exponential of PyTorch's attention in 16 bits (Vectorized<float>::fexp_u20): a power of two
// whose fraction a polynomial of degree 3 corrects, made by a conversion to an integer (Malossi et
// al., Fast Exponential Computation on SIMD Architectures, 2015).
inline __m512 exponential(__m512 x) {
  constexpr float kOne = 1 << 23;  // of the exponent, in the bits of a float
  const __m512 least = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(0xc2aeac50)));
  const __m512 most = _mm512_castsi512_ps(_mm512_set1_epi32(0x42b17218));
  const __m512 log2e = _mm512_castsi512_ps(_mm512_set1_epi32(0x3fb8aa3b));
  const __mmask16 is_zero = _mm512_cmp_ps_mask(x, least, _CMP_LT_OS);
  const __mmask16 is_infinite = _mm512_cmp_ps_mask(x, most, _CMP_GT_OS);
  const __m512 power = _mm512_mul_ps(x, log2e);
  const __m512 fraction = _mm512_sub_ps(power, _mm512_floor_ps(power));
  __m512 correction = _mm512_set1_ps(-0.079204240219773236f);
  for (const float c : {-0.22433836478672356f, 0.30354260500649682f, 0.00010703434948458272f}) {
    correction = _mm512_fmadd_ps(fraction, correction, _mm512_set1_ps(c));
  }
  const __m512 value = _mm512_fmadd_ps(_mm512_set1_ps(kOne), _mm512_sub_ps(power, correction),
                                       _mm512_set1_ps(kOne * 127.0f));
  const __m512i bits = _mm512_mask_set1_epi32(_mm512_cvttps_epi32(value), is_infinite, 0x7f800000);
  return _mm512_castsi512_ps(_mm512_mask_set1_epi32(bits, is_zero, 0));
}

// Scores of four keys with `kHeads` queries, to scores[head * kTokenKeys].
template <int kHeads>
void score(const uint16_t* query, const uint16_t* const* keys, int64_t size, float* scores) {
  __m512 sums[kHeads];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += kLanes) {
    const __m512 a = widen(keys[0] + i), b = widen(keys[1] + i);
    const __m512 c = widen(keys[2] + i), d = widen(keys[3] + i);
    // Four columns of each key: the first four, the next four, ...
    const __m512 ab_low = _mm512_shuffle_f32x4(a, b, 0x44);
    const __m512 ab_high = _mm512_shuffle_f32x4(a, b, 0xee);
    const __m512 cd_low = _mm512_shuffle_f32x4(c, d, 0x44);
    const __m512 cd_high = _mm512_shuffle_f32x4(c, d, 0xee);
    const __m512 parts[] = {
        _mm512_shuffle_f32x4(ab_low, cd_low, 0x88), _mm512_shuffle_f32x4(ab_low, cd_low, 0xdd),
        _mm512_shuffle_f32x4(ab_high, cd_high, 0x88), _mm512_shuffle_f32x4(ab_high, cd_high, 0xdd)};
    for (int h = 0; h < kHeads; ++h) {
      const __m512 q = widen(query + h * size + i);
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

// Asks for what lies at four tokens to be brought near, which takes as long as many products.
inline void fetch(const uint16_t* const* tokens, int64_t size) {
  for (int64_t i = 0; i < kKeys; ++i) {
    for (int64_t column = 0; column < size; column += kLine) {
      _mm_prefetch(reinterpret_cast<const char*>(tokens[i] + column), _MM_HINT_T0);
    }
  }
}

template <int kHeads>
void score_all(const uint16_t* query, const uint16_t* const* keys, const uint16_t* const* values,
               int64_t count, int64_t size, float* scores) {
  int64_t k = 0;
  for (; k + kKeys <= count; k += kKeys) {
    if (k + kAhead + kKeys <= count) {
      fetch(keys + k + kAhead, size);
      fetch(values + k + kAhead, size);
    }
    score<kHeads>(query, keys + k, size, scores + k);
  }
  if (k == count) return;
  const uint16_t* last[kKeys];  // the scores of those behind the last key are read by nobody
  for (int64_t i = 0; i < kKeys; ++i) last[i] = keys[std::min(k + i, count - 1)];
  score<kHeads>(query, last, size, scores + k);
}

// Multiplies scores by `scale`, and returns the largest. NaN is the largest of all in registers,
// and lost among those behind the last whole one, as in PyTorch.
float scaled_maximum(float* scores, int64_t count, float scale) {
  const auto maximum = [](__m512 a, __m512 b) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
    return _mm512_mask_add_ps(_mm512_max_ps(a, b), is_nan, a, b);
  };
  __m512 most = _mm512_set1_ps(-kInfinity);
  int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(scores + k), _mm512_set1_ps(scale));
    most = maximum(most, scaled);
    _mm512_storeu_ps(scores + k, scaled);
  }
  float last = -kInfinity;
  for (; k < count; ++k) last = std::max(last, scores[k] *= scale);
  return std::max(fold(most, maximum), last);
}

// Makes weights of scores, rounded to bfloat16, and returns the sum of what they were before: of
// registers by turns in two sums, and then of what is behind the last whole register.
float exponentials(float* scores, int64_t count, float maximum) {
  __m512 sums[] = {_mm512_setzero_ps(), _mm512_setzero_ps()};  // by turns
  int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    const __m512 x = _mm512_loadu_ps(scores + k);
    const __m512 weights = exponential(_mm512_sub_ps(x, _mm512_set1_ps(maximum)));
    __m512& own = sums[k / kLanes % 2];
    own = _mm512_add_ps(own, weights);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    _mm512_storeu_si512(scores + k, _mm512_and_si512(rounded(weights), upper));
  }
  float sum = fold(_mm512_add_ps(sums[0], sums[1]), [](__m512 a, __m512 b) { return a + b; });
  for (; k < count; ++k) {
    const float weight = std::exp(scores[k] - maximum);
    sum += weight;
    scores[k] = rounded(weight);
  }
  return sum;
}

// Adds sixteen columns of the values of `count` tokens, by their weights, to those of each head.
template <int kHeads>
void add_columns(const float* weights, const uint16_t* const* values, int64_t count, int64_t column,
                 int64_t size, float* sums) {
  const auto weight = [&](int head, int64_t token) {
    return _mm512_set1_ps(weights[head * kTokenKeys + token]);
  };
  __m512 all[kHeads];
  for (int h = 0; h < kHeads; ++h) all[h] = _mm512_loadu_ps(sums + h * size);
  int64_t k = 0;
  for (; k + kKeys <= count; k += kKeys) {
    const __m512 v0 = widen(values[k] + column), v1 = widen(values[k + 1] + column);
    const __m512 v2 = widen(values[k + 2] + column), v3 = widen(values[k + 3] + column);
    for (int h = 0; h < kHeads; ++h) {
      const __m512 even = _mm512_fmadd_ps(v2, weight(h, k + 2), _mm512_mul_ps(v0, weight(h, k)));
      const __m512 odd = _mm512_fmadd_ps(v3, weight(h, k + 3), _mm512_mul_ps(v1, weight(h, k + 1)));
      all[h] = _mm512_add_ps(all[h], _mm512_add_ps(even, odd));
    }
  }
  for (int64_t left = count - 1; left >= k; --left) {
    const __m512 v = widen(values[left] + column);
    for (int h = 0; h < kHeads; ++h) all[h] = _mm512_fmadd_ps(v, weight(h, left), all[h]);
  }
  for (int h = 0; h < kHeads; ++h) _mm512_storeu_ps(sums + h * size, all[h]);
}

template <int kHeads>
void attend(const TokenAttention& given, int64_t first_head) {
  const int64_t size = given.size;
  const uint16_t* query = given.query + first_head * size;
  float* sums = given.scratch;  // [heads, size]
  float* scores = sums + kHeads * size;
  float maxima[kHeads], totals[kHeads];
  std::fill_n(sums, kHeads * size, 0.0f);
  std::fill_n(maxima, kHeads, -kInfinity);
  std::fill_n(totals, kHeads, 0.0f);
  for (int64_t first = 0; first < given.length; first += kTokenKeys) {
    const int64_t count = std::min(kTokenKeys, given.length - first);
    score_all<kHeads>(query, given.keys + first, given.values + first, count, size, scores);
    for (int h = 0; h < kHeads; ++h) {
      float* own = scores + h * kTokenKeys;
      const float found = scaled_maximum(own, count, given.scale);
      const float maximum = maxima[h] > found ? maxima[h] : found;
      if (maximum == -kInfinity) {
        std::fill_n(own, count, 0.0f);
        continue;
      }
      const float sum = exponentials(own, count, maximum);
      const float before = std::exp(maxima[h] - maximum);
      totals[h] = std::fma(before, totals[h], sum);
      maxima[h] = maximum;
      if (first) {
        for (int64_t i = 0; i < size; ++i) sums[h * size + i] *= before;
      }
    }
    for (int64_t i = 0; i < size; i += kLanes) {
      add_columns<kHeads>(scores, given.values + first, count, i, size, sums + i);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    const __m512 reciprocal = _mm512_set1_ps(1.0f / (totals[h] == 0.0f ? 1.0f : totals[h]));
    for (int64_t i = 0; i < size; i += kLanes) {
      const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(sums + h * size + i), reciprocal);
      const __m256i bits = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded(x), 16));
      uint16_t* target = given.out + (first_head + h) * size + i;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), bits);
    }
  }
}

}  // namespace avx512
}  // namespace

void token_attention_avx512(const TokenAttention& given) {
  int64_t h = 0;
  for (; h + 4 <= given.heads; h += 4) avx512::attend<4>(given, h);
  for (; h + 2 <= given.heads; h += 2) avx512::attend<2>(given, h);
  for (; h < given.heads; ++h) avx512::attend<1>(given, h);
}

}  // namespace vllm_fork
