// AVX-512: the softmax of PyTorch's attention on CPUs, for keys and values of any dtype.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace vllm_fork {
namespace {
namespace avx512 {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kLanes = 16;

// Sums and maxima of sixteen lanes: eight and eight, four and four, two and two, one and one.
template <typename Op>
inline float fold(__m512 x, Op op) {
  x = op(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  x = op(x, _mm512_shuffle_f32x4(x, x, 0xb1));
  x = op(x, _mm512_shuffle_ps(x, x, 0x4e));
  return _mm512_cvtss_f32(op(x, _mm512_shuffle_ps(x, x, 0xb1)));
}

// The exponential of PyTorch's attention in float32 (Vectorized<float>::exp_u20): a power of two, times
// a polynomial of degree 5 of what is left.
inline __m512 exponential_of_float32(__m512 x) {
  const __m512 least = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(0xc2aeac50)));
  const __m512 most = _mm512_castsi512_ps(_mm512_set1_epi32(0x42b17218));
  const __m512 log2e = _mm512_castsi512_ps(_mm512_set1_epi32(0x3fb8aa3b));
  const __m512 ln2 = _mm512_castsi512_ps(_mm512_set1_epi32(0x3f317218));
  const __mmask16 is_zero = _mm512_cmp_ps_mask(x, least, _CMP_LT_OS);
  x = _mm512_max_ps(_mm512_min_ps(x, most), least);
  const __m512 power = _mm512_floor_ps(_mm512_fmadd_ps(x, log2e, _mm512_set1_ps(0.5f)));
  const __m512 left = _mm512_fnmadd_ps(power, ln2, x);
  __m512 value = _mm512_set1_ps(0.00828929059f);
  for (const float c : {0.0418978221f, 0.166676521f, 0.499991506f, 0.999999701f, 1.0f}) {
    value = _mm512_fmadd_ps(left, value, _mm512_set1_ps(c));
  }
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(power), _mm512_set1_epi32(126));
  const __m512i half = _mm512_mask_set1_epi32(_mm512_slli_epi32(exponent, 23), is_zero, 0);
  return _mm512_mul_ps(_mm512_mul_ps(value, _mm512_castsi512_ps(half)), _mm512_set1_ps(2.0f));
}

// That of its attention in 16 bits (Vectorized<float>::fexp_u20): a power of two
// whose fraction a polynomial of degree 3 corrects, made by a conversion to an integer (Malossi et
// al., Fast Exponential Computation on SIMD Architectures, 2015).
inline __m512 exponential_of_16_bits(__m512 x) {
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

// Numbers in memory, in registers of float32.
struct Bfloat16Lanes {
  using Bits = uint16_t;
  static constexpr int64_t kSums = 2;  // of weights

  static __m512 exponential(__m512 x) { return exponential_of_16_bits(x); }

  static __m512 widen(const uint16_t* bits) {
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }

  // To the nearest, ties to even; NaN stays NaN.
  static __m512 rounded(__m512 x) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return _mm512_castsi512_ps(_mm512_and_si512(rounded_bits(x), upper));
  }

  static float rounded(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    if (x != x) return x;
    return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000);
  }

  static void store(uint16_t* target, __m512 x) {
    const __m256i bits = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(x), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), bits);
  }

 private:
  static __m512i rounded_bits(__m512 x) {  // in the upper half
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_set1_epi32(up, is_nan, 0x7fc00000);
  }
};

struct Float16Lanes {
  using Bits = uint16_t;
  static constexpr int64_t kSums = 2;

  static __m512 exponential(__m512 x) { return exponential_of_16_bits(x); }

  static __m512 widen(const uint16_t* bits) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits)));
  }

  static __m512 rounded(__m512 x) { return _mm512_cvtph_ps(narrow(x)); }

  static float rounded(float x) { return _mm512_cvtss_f32(rounded(_mm512_set1_ps(x))); }

  static void store(uint16_t* target, __m512 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), narrow(x));
  }

 private:
  static __m256i narrow(__m512 x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

struct Float32Lanes {
  using Bits = float;
  static constexpr int64_t kSums = 1;

  static __m512 exponential(__m512 x) { return exponential_of_float32(x); }
  static __m512 widen(const float* x) { return _mm512_loadu_ps(x); }
  static __m512 rounded(__m512 x) { return x; }
  static float rounded(float x) { return x; }
  static void store(float* target, __m512 x) { _mm512_storeu_ps(target, x); }
};

// Divides what was added by the sum of weights, as PyTorch does: by its reciprocal.
template <class Number>
inline void write_row(const float* sums, float total, int64_t size,
                      typename Number::Bits* target) {
  const __m512 reciprocal = _mm512_set1_ps(1.0f / (total == 0.0f ? 1.0f : total));
  for (int64_t i = 0; i < size; i += kLanes) {
    Number::store(target + i, _mm512_mul_ps(_mm512_loadu_ps(sums + i), reciprocal));
  }
}

// Multiplies the first `seen` of `count` scores by `scale`, and returns the largest. NaN is the
// largest of all in registers, and lost among those behind the last whole one, as in PyTorch. What
// is not seen is minus infinity, in the register that it shares, and else left out.
inline float scaled_maximum(float* scores, int64_t count, int64_t seen, float scale) {
  const auto maximum = [](__m512 a, __m512 b) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
    return _mm512_mask_add_ps(_mm512_max_ps(a, b), is_nan, a, b);
  };
  __m512 most = _mm512_set1_ps(-kInfinity);
  int64_t k = 0;
  for (; k + kLanes <= count && k < seen; k += kLanes) {
    for (int64_t hidden = seen; hidden < k + kLanes; ++hidden) scores[hidden] = -kInfinity;
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(scores + k), _mm512_set1_ps(scale));
    most = maximum(most, scaled);
    _mm512_storeu_ps(scores + k, scaled);
  }
  float last = -kInfinity;
  for (; k < seen; ++k) last = std::max(last, scores[k] *= scale);
  return std::max(fold(most, maximum), last);
}

// Makes weights of scores, rounded to the dtype, and returns the sum of what they were before: of
// registers, in 16 bits by turns in two sums, and then of what is behind the last whole register. Weights of
// what is not seen are 0, and add nothing.
template <class Number>
inline float exponentials(float* scores, int64_t count, int64_t seen, float maximum) {
  __m512 sums[] = {_mm512_setzero_ps(), _mm512_setzero_ps()};  // by turns
  int64_t k = 0;
  for (; k + kLanes <= count && k < seen; k += kLanes) {
    const __m512 x = _mm512_loadu_ps(scores + k);
    const __m512 below = _mm512_sub_ps(x, _mm512_set1_ps(maximum));
    const __m512 weights = Number::exponential(below);
    __m512& own = sums[k / kLanes % Number::kSums];
    own = _mm512_add_ps(own, weights);
    _mm512_storeu_ps(scores + k, Number::rounded(weights));
  }
  float sum = fold(_mm512_add_ps(sums[0], sums[1]), [](__m512 a, __m512 b) { return a + b; });
  for (; k < seen; ++k) {
    const float weight = static_cast<float>(std::exp(static_cast<double>(scores[k] - maximum)));
    sum += weight;
    scores[k] = Number::rounded(weight);
  }
  return sum;
}

// What a row of queries has added so far.
struct RowState {
  float maximum = -kInfinity;
  float total = 0.0f;
};

// Makes weights of a row's scores with a block of keys, and scales what was added before; without
// effect if all that it sees are minus infinity.
template <class Number>
inline void next_weights(float* scores, int64_t count, int64_t seen, float scale, bool is_first,
                         int64_t size, RowState& state, float* sums) {
  const float found = scaled_maximum(scores, count, seen, scale);
  const float maximum = state.maximum > found ? state.maximum : found;
  if (maximum == -kInfinity) {
    std::fill_n(scores, seen, 0.0f);
    return;
  }
  const float sum = exponentials<Number>(scores, count, seen, maximum);
  const float before = std::exp(state.maximum - maximum);
  state.total = std::fma(before, state.total, sum);
  state.maximum = maximum;
  if (is_first) return;
  for (int64_t i = 0; i < size; ++i) sums[i] *= before;
}

}  // namespace avx512
}  // namespace
}  // namespace vllm_fork
