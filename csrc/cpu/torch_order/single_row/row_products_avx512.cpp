// AVX-512F: four registers are the 64 sums of a row, and four rows share what is read of the weight.
#include <immintrin.h>

#include <algorithm>

#include "cpu/torch_order/single_row/eight_sums_avx512.h"
#include "cpu/torch_order/single_row/row_products.h"

namespace vllm_fork {
namespace {
namespace avx512 {

constexpr int kLanes = 16;
constexpr int kRegisters = 4;
constexpr int kRows = 4;

template <bool kIsFloat16>
inline __m512 widen(const uint16_t* bits) {
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
  if constexpr (kIsFloat16) return _mm512_cvtph_ps(narrow);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

inline float fold(const __m512* sums) {
  const __m512 even = _mm512_add_ps(sums[0], sums[2]);
  const __m512 odd = _mm512_add_ps(sums[1], sums[3]);
  return _mm512_reduce_add_ps(_mm512_add_ps(even, odd));  // folds halves down to one
}

// What the columns from `first` on add to a sum.
template <bool kIsFloat16>
float with_rest(float sum, const float* x, const uint16_t* weight, int64_t first, int64_t size) {
  int64_t i = first;
  EightSums sums;
  for (; i + kLanes <= size; i += kLanes) {
    sums.add(_mm512_mul_ps(_mm512_loadu_ps(x + i), widen<kIsFloat16>(weight + i)));
  }
  if (i > first) sum += sums.folded();
  if (i == size) return sum;
  uint16_t last[kLanes] = {};
  std::copy(weight + i, weight + size, last);
  float wide[kLanes];
  _mm512_storeu_ps(wide, widen<kIsFloat16>(last));
  for (int64_t k = i; k < size; ++k) sum += x[k] * wide[k - i];
  return sum;
}

template <bool kIsFloat16, int kCount>
inline void products(const float* x, const uint16_t* weight, int64_t size, float* out,
                     int64_t stride) {
  __m512 sums[kCount][kRegisters];
  for (auto& row : sums) {
    for (auto& sum : row) sum = _mm512_setzero_ps();
  }
  const int64_t whole = size / (kLanes * kRegisters) * (kLanes * kRegisters);
  for (int64_t i = 0; i < whole; i += kLanes * kRegisters) {
    for (int r = 0; r < kRegisters; ++r) {
      const __m512 w = widen<kIsFloat16>(weight + i + r * kLanes);
      for (int m = 0; m < kCount; ++m) {
        const __m512 v = _mm512_loadu_ps(x + m * size + i + r * kLanes);
        sums[m][r] = _mm512_fmadd_ps(v, w, sums[m][r]);
      }
    }
  }
  for (int m = 0; m < kCount; ++m) out[m * stride] = fold(sums[m]);
  if (whole == size) return;
  for (int m = 0; m < kCount; ++m) {
    out[m * stride] = with_rest<kIsFloat16>(out[m * stride], x + m * size, weight, whole, size);
  }
}

template <bool kIsFloat16>
void all_products(const float* x, int64_t rows, const uint16_t* weight, int64_t outputs,
                  int64_t size, float* out) {
  for (int64_t m = 0; m < rows; m += kRows) {  // the rows stay in the first cache
    const float* here = x + m * size;
    for (int64_t n = 0; n < outputs; ++n) {
      const uint16_t* w = weight + n * size;
      float* target = out + m * outputs + n;
      switch (std::min<int64_t>(kRows, rows - m)) {
        case 1: products<kIsFloat16, 1>(here, w, size, target, outputs); break;
        case 2: products<kIsFloat16, 2>(here, w, size, target, outputs); break;
        case 3: products<kIsFloat16, 3>(here, w, size, target, outputs); break;
        default: products<kIsFloat16, kRows>(here, w, size, target, outputs);
      }
    }
  }
}

}  // namespace avx512
}  // namespace

void row_products_avx512(const float* x, int64_t rows, const uint16_t* weight, bool is_float16,
                         int64_t outputs, int64_t size, float* out) {
  const auto multiply = is_float16 ? avx512::all_products<true> : avx512::all_products<false>;
  multiply(x, rows, weight, outputs, size, out);
}

}  // namespace vllm_fork
