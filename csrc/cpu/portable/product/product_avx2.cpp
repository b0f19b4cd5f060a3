// AVX2: a panel is two registers.
#include <immintrin.h>

#include "cpu/portable/product/product_madd.h"

namespace vllm_fork {
namespace {
namespace avx2 {

struct Vector {
  using Integers = __m256i;
  static constexpr int kLanes = 8;

  VLLM_FORK_INLINE static __m256i load(const uint8_t* bytes) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
  }
  VLLM_FORK_INLINE static __m256i zero() { return _mm256_setzero_si256(); }
  VLLM_FORK_INLINE static __m256i broadcast(int32_t value) { return _mm256_set1_epi32(value); }
  VLLM_FORK_INLINE static __m256i add16(__m256i a, __m256i b) { return _mm256_add_epi16(a, b); }
  VLLM_FORK_INLINE static __m256i times_256(__m256i a) { return _mm256_slli_epi16(a, 8); }
  // In assembly, since GCC 12 computes all products before it adds them, and spills sums.
  VLLM_FORK_INLINE static __m256i add_products(__m256i sum, __m256i a, __m256i b) {
    __m256i products;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(a), "x"(b));
    return sum;
  }

  struct EvenBytes {
    VLLM_FORK_INLINE __m256i operator()(__m256i bytes) const {
      return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
    }
  };
  struct OddBytes {
    VLLM_FORK_INLINE __m256i operator()(__m256i bytes) const {
      return _mm256_srai_epi16(bytes, 8);
    }
  };
  static constexpr EvenBytes even_bytes{};
  static constexpr OddBytes odd_bytes{};

  // The specification's add_block_sum, for the block words of 8 outputs.
  VLLM_FORK_INLINE static void add_scaled(const TileSums& sums, int64_t index, __m256i block,
                                          __m256i words, float row_scale) {
    const __m256i bits = _mm256_slli_epi32(_mm256_and_si256(words, _mm256_set1_epi32(255)), 23);
    const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(block), _mm256_castsi256_ps(bits));
    sums.add(index, _mm256_mul_ps(scaled, _mm256_set1_ps(row_scale)));
  }
};

}  // namespace avx2
}  // namespace

const ProductKernel& product_kernel_avx2(int64_t) {
  return kProductKernel<MaddKernel<avx2::Vector, 4>>;
}

}  // namespace vllm_fork
