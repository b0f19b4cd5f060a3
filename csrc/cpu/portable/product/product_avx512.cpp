// AVX-512BW without VNNI: a panel is a register.
#include "cpu/portable/product/avx512_block.h"
#include "cpu/portable/product/product_madd.h"

namespace vllm_fork {
namespace {
namespace avx512 {

struct Vector {
  using Integers = __m512i;
  static constexpr int kLanes = 16;

  VLLM_FORK_INLINE static __m512i load(const uint8_t* bytes) { return _mm512_load_si512(bytes); }
  VLLM_FORK_INLINE static __m512i zero() { return _mm512_setzero_si512(); }
  VLLM_FORK_INLINE static __m512i broadcast(int32_t value) { return _mm512_set1_epi32(value); }
  VLLM_FORK_INLINE static __m512i add16(__m512i a, __m512i b) { return _mm512_add_epi16(a, b); }
  VLLM_FORK_INLINE static __m512i times_256(__m512i a) { return _mm512_slli_epi16(a, 8); }
  VLLM_FORK_INLINE static __m512i add_products(__m512i sum, __m512i a, __m512i b) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
  }

  struct EvenBytes {
    VLLM_FORK_INLINE __m512i operator()(__m512i bytes) const {
      return _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8);
    }
  };
  struct OddBytes {
    VLLM_FORK_INLINE __m512i operator()(__m512i bytes) const {
      return _mm512_srai_epi16(bytes, 8);
    }
  };
  static constexpr EvenBytes even_bytes{};
  static constexpr OddBytes odd_bytes{};

  VLLM_FORK_INLINE static void add_scaled(const TileSums& sums, int64_t index, __m512i block,
                                          __m512i words, float row_scale) {
    avx512_add_scaled(sums, index, block, avx512_scales(words), row_scale);
  }
};

}  // namespace avx512
}  // namespace

const ProductKernel& product_kernel_avx512(int64_t) {
  return kProductKernel<MaddKernel<avx512::Vector, 8>>;
}

}  // namespace vllm_fork
