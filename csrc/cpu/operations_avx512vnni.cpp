// AVX-512 with VNNI: an instruction multiplies 64 bytes and adds four neighbours to each sum.
#include <immintrin.h>

#include "cpu/operations_table.h"

namespace vllm_fork {
namespace {

struct Avx512Vnni {
  static constexpr int kRows = 4;

  using Ints = uint32_t __attribute__((vector_size(64)));

  // The sums of one row: of each of its digits with each digit of the tiles.
  struct Accumulators {
    Ints upper_upper = {};
    Ints lower_upper = {};
    Ints upper_lower = {};
    Ints lower_lower = {};
  };

  // One row alone has too few sums to keep the multipliers busy: it gets a second set.
  template <int kCount>
  static void products(const CoefficientRow* rows, const Tiles& tiles, const Sums* out) {
    constexpr int kSets = kCount == 1 ? 2 : 1;
    Accumulators sums[kCount][kSets];
    int64_t place = 0;
    for (int i = 0; i < tiles.count; ++i) {
      for (int64_t s = 0; s < tiles.steps; s += kSets) {  // both are even
        for (int set = 0; set < kSets; ++set, place += 4) {
          const __m512i upper = excess_128(tiles.upper[i] + (s + set) * tiles.stride);
          const __m512i lower = excess_128(tiles.lower[i] + (s + set) * tiles.stride);
          for (int m = 0; m < kCount; ++m) add(sums[m][set], upper, lower, rows[m], place);
        }
      }
    }
    for (int m = 0; m < kCount; ++m) {
      if (kSets == 2) join(sums[m][0], sums[m][1]);
      store(sums[m][0], rows[m].sum, out[m]);
    }
  }

  // The instruction takes one factor without a sign: a digit plus 128.
  static __m512i excess_128(const int8_t* digits) {
    return _mm512_xor_si512(_mm512_loadu_si512(digits), _mm512_set1_epi8(-128));
  }

  static __m512i four(const int8_t* coefficients) {
    int32_t bytes;
    std::memcpy(&bytes, coefficients, sizeof bytes);
    return _mm512_set1_epi32(bytes);
  }

  static Ints dot(Ints sums, __m512i digits, __m512i coefficients) {
    return reinterpret_cast<Ints>(
        _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), digits, coefficients));
  }

  static void add(Accumulators& to, __m512i upper, __m512i lower, const CoefficientRow& row,
                  int64_t place) {
    const __m512i row_upper = four(row.upper + place);
    const __m512i row_lower = four(row.lower + place);
    to.upper_upper = dot(to.upper_upper, upper, row_upper);
    to.lower_upper = dot(to.lower_upper, upper, row_lower);
    to.upper_lower = dot(to.upper_lower, lower, row_upper);
    to.lower_lower = dot(to.lower_lower, lower, row_lower);
  }

  static void join(Accumulators& to, const Accumulators& from) {
    to.upper_upper += from.upper_upper;
    to.lower_upper += from.lower_upper;
    to.upper_lower += from.upper_lower;
    to.lower_lower += from.lower_lower;
  }

  // Takes back the 128 that were added to each digit of the tiles.
  static void store(const Accumulators& sums, int32_t coefficient_sum, const Sums& out) {
    const uint32_t excess = static_cast<uint32_t>(coefficient_sum) * 128;
    store(out.upper, sums.upper_upper * 256 + sums.lower_upper - excess);
    store(out.lower, sums.upper_lower * 256 + sums.lower_lower - excess);
  }

  static void store(int32_t* out, Ints sums) {
    _mm512_storeu_si512(out, reinterpret_cast<__m512i>(sums));
  }
};

}  // namespace

constexpr PortableOperations portable_operations_avx512vnni = Table<Avx512Vnni>::operations();

}  // namespace vllm_fork
