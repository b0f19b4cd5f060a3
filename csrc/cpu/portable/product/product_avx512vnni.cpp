// AVX-512 VNNI: vpdpbusd multiplies unsigned bytes with signed ones and adds four products.
//
// The digits of activations are stored with 128 added. What that makes too much of a block's sum
// depends on the weight alone and is in the block words.
#include <cstring>

#include "cpu/portable/product/avx512_block.h"
#include "cpu/portable/product/product_loop.h"

namespace vllm_fork {
namespace {
namespace avx512vnni {

constexpr int kMostRows = 6;    // 6 rows of 2 panels: 24 of 32 registers are sums
constexpr int kFewestRows = 2;  // up to so many take 4 panels: fewer would wait for each other
constexpr int kPanelsOfMany = 2;

VLLM_FORK_INLINE __m512i load(const uint8_t* bytes) { return _mm512_load_si512(bytes); }

// The specification's break_tie(round_to_integer(x * scale)) for 16 numbers.
VLLM_FORK_INLINE __m512i rounded(const float* values, float scale) {
  const __m512 rounder = _mm512_set1_ps(kRounder);
  const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(values), _mm512_set1_ps(scale));
  const __m512i shifted = _mm512_castps_si512(_mm512_add_ps(scaled, rounder));
  const __m512i integers = _mm512_sub_epi32(shifted, _mm512_castps_si512(rounder));
  const __m512i ends = _mm512_and_si512(integers, _mm512_set1_epi32(511));
  const __mmask16 is_tie = _mm512_cmpeq_epi32_mask(ends, _mm512_set1_epi32(128));
  return _mm512_mask_sub_epi32(integers, is_tie, integers, _mm512_set1_epi32(1));
}

// Its upper_digit: without the lower one, which is in -128..127.
VLLM_FORK_INLINE __m512i upper_digits(__m512i integers) {
  return _mm512_srai_epi32(_mm512_add_epi32(integers, _mm512_set1_epi32(128)), 8);
}

// Four channels' digits of a row, which every lane gets.
VLLM_FORK_INLINE __m512i four(const uint8_t* digits) {
  int32_t bytes;
  std::memcpy(&bytes, digits, sizeof bytes);
  return _mm512_set1_epi32(bytes);
}

// In assembly, since around the intrinsic GCC 12 copies and spills sums: half the speed.
VLLM_FORK_INLINE __m512i add_dot(__m512i sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
  return sum;
}

template <int kRows, int kPanels>
struct Sums {
  __m512i high[kRows][kPanels];   // high * high
  __m512i mixed[kRows][kPanels];  // high * low
  __m512i other[kRows][kPanels];  // low * high, apart from the others if registers suffice
  static constexpr bool kHasOther = kRows * kPanels * 3 <= 24;

  VLLM_FORK_INLINE explicit Sums(const BlockWork& work) {
    for (int n = 0; n < kPanels; ++n) {
      const __m512i words = load(work.weights + n * work.panel_bytes);
      const __m512i excess = _mm512_slli_epi32(_mm512_srai_epi32(words, 8), 7);
      for (int m = 0; m < kRows; ++m) {
        high[m][n] = _mm512_setzero_si512();
        mixed[m][n] = _mm512_sub_epi32(_mm512_setzero_si512(), excess);
        other[m][n] = _mm512_setzero_si512();
      }
    }
  }

  VLLM_FORK_INLINE void add(int m, int n, __m512i x_high, __m512i x_low, __m512i w_high,
                            __m512i w_low) {
    high[m][n] = add_dot(high[m][n], x_high, w_high);
    mixed[m][n] = add_dot(mixed[m][n], x_high, w_low);
    __m512i& last = kHasOther ? other[m][n] : mixed[m][n];
    last = add_dot(last, x_low, w_high);
  }

  VLLM_FORK_INLINE __m512i block(int m, int n) const {
    const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(high[m][n], 8), mixed[m][n]);
    return kHasOther ? _mm512_add_epi32(both, other[m][n]) : both;
  }
};

// What a pass over a block asks for of what comes later, while it multiplies: where several passes
// multiply the same block with other rows, each of the first ones asks for one panel. Where few
// rows go fast through a block, a processor sees by itself what comes.
enum class Asks { kNothing, kOnePanel, kAllPanels };

VLLM_FORK_INLINE void ask_for_group(const uint8_t* weights) {
  _mm_prefetch(reinterpret_cast<const char*>(weights), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(weights + kGroupBytes / 2), _MM_HINT_T0);
}

template <int kRows, int kPanels, Asks kAsks>
void add_rows(const BlockWork& work, int64_t first, int64_t pass) {
  Sums<kRows, kPanels> sums(work);
  const int64_t asked = work.ahead + pass * work.panel_bytes;
  const uint8_t* rows = work.digits + first * work.row_bytes;
  const uint8_t* weights = work.weights + kWordBytes;
  for (int64_t g = 0; g < work.groups; ++g) {
    __m512i w_high[kPanels];
    __m512i w_low[kPanels];
    for (int n = 0; n < kPanels; ++n) {
      w_high[n] = load(weights + n * work.panel_bytes);
      w_low[n] = load(weights + n * work.panel_bytes + kPanel * kGroup);
    }
    for (int m = 0; m < kRows; ++m) {
      const __m512i x_high = four(rows + m * work.row_bytes);
      const __m512i x_low = four(rows + m * work.row_bytes + kGroup);
      for (int n = 0; n < kPanels; ++n) sums.add(m, n, x_high, x_low, w_high[n], w_low[n]);
    }
    if constexpr (kAsks == Asks::kOnePanel) ask_for_group(weights + asked);
    if constexpr (kAsks == Asks::kAllPanels) {
      for (int n = 0; n < kPanels; ++n) ask_for_group(weights + work.ahead + n * work.panel_bytes);
    }
    weights += kGroupBytes;
    rows += kDigits * kGroup;
  }
  const TileSums target = work.sums.behind(first * kPanels * kPanel);
  const float* row_scales = work.row_scales + first * work.scale_stride;
#pragma GCC unroll 4
  for (int n = 0; n < kPanels; ++n) {
    const __m512 scales = avx512_scales(load(work.weights + n * work.panel_bytes));
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const float row_scale = row_scales[m * work.scale_stride];
      avx512_add_scaled(target, (m * kPanels + n) * kPanel, sums.block(m, n), scales, row_scale);
    }
  }
}

template <int kRows, int kPanels>
VLLM_FORK_INLINE void add_rows(const BlockWork& work, int64_t first, int64_t rows, int64_t pass) {
  if (rows == kRows) {
    if constexpr (kPanels <= kPanelsOfMany) {
      if (rows == work.rows) return add_rows<kRows, kPanels, Asks::kAllPanels>(work, first, pass);
      if (pass < kPanels) return add_rows<kRows, kPanels, Asks::kOnePanel>(work, first, pass);
    }
    return add_rows<kRows, kPanels, Asks::kNothing>(work, first, pass);
  }
  if constexpr (kRows > 1) add_rows<kRows - 1, kPanels>(work, first, rows, pass);
}

struct Kernel {
  static constexpr int64_t kStep = kGroup;
  static constexpr int64_t kChannelBytes = kDigits;
  static constexpr int64_t kRowsTogether = 1;
  static constexpr int64_t kRowPadding = 64;  // so that rows do not share sets of the first cache
  static constexpr int64_t kFewRows = kFewestRows;
  static constexpr int64_t kPanelsOfFew = 4;
  static constexpr int64_t kPanels = kPanelsOfMany;
  using Session = NoSession;

  // uint8 [padded / 4, 2, 4]: the digits plus 128. What is written behind them is overwritten by
  // the next block, or lies between rows.
  static void split(const float* values, int64_t padded, float scale, uint8_t* target) {
    static_assert(kDigits * kSplitAtOnce <= kRowPadding);
    const __m128i excess = _mm_set1_epi8(-128);
    for (int64_t k = 0; k < padded; k += kSplitAtOnce, target += kDigits * kSplitAtOnce) {
      const __m512i integers = rounded(values + k, scale);
      const __m128i high = _mm512_cvtepi32_epi8(upper_digits(integers));
      const __m128i low = _mm512_cvtepi32_epi8(integers);
      auto* both = reinterpret_cast<__m128i*>(target);
      _mm_storeu_si128(both, _mm_xor_si128(_mm_unpacklo_epi32(high, low), excess));
      _mm_storeu_si128(both + 1, _mm_xor_si128(_mm_unpackhi_epi32(high, low), excess));
    }
  }

  static void add_block(const BlockWork& work) {
    int64_t pass = 0;
    for (int64_t m = 0; m < work.rows; ++pass) {
      const int64_t most = work.panels > kPanelsOfMany ? kFewestRows : kMostRows;
      const int64_t rows = next_rows(work.rows - m, most);
      switch (work.panels) {
        case 1: add_rows<kMostRows, 1>(work, m, rows, pass); break;
        case 2: add_rows<kMostRows, 2>(work, m, rows, pass); break;
        case 3: add_rows<kFewestRows, 3>(work, m, rows, pass); break;
        default: add_rows<kFewestRows, 4>(work, m, rows, pass);
      }
      m += rows;
    }
  }
};

}  // namespace avx512vnni
}  // namespace

const ProductKernel& product_kernel_avx512vnni(int64_t) {
  return kProductKernel<avx512vnni::Kernel>;
}

}  // namespace vllm_fork
