// A block kernel for vectors that multiply pairs of int16 and have no dot product of int8.
//
// Of 4 channels of 16 outputs, whose digits are bytes, the even channels and the odd ones are
// widened to int16 apart, as 256 * high + low and as high. So P of the specification is the sum of
//
//   high(x) * (256 * high(w) + low(w)) + low(x) * high(w)
//
// and its partial sums are in the range of int32: 256 * 127 * 32639 + 256 * 128 * 127 < 2^31.
//
// A `Vector` has kLanes lanes of 32 bits, and the functions that are called here.
#pragma once

#include <cstring>

#include "cpu/portable/product/product_loop.h"

namespace vllm_fork {
namespace {

template <typename Vector, int kMostRows>
struct MaddKernel {
  static constexpr int64_t kStep = kGroup;
  static constexpr int64_t kChannelBytes = kDigits * sizeof(int16_t);
  static constexpr int64_t kRowsTogether = 1;
  static constexpr int64_t kRowPadding = 64;  // so that rows do not share sets of the first cache
  static constexpr int64_t kFewRows = 0;
  static constexpr int64_t kPanelsOfFew = 1;
  static constexpr int64_t kPanels = 1;
  static constexpr int kVectors = kPanel / Vector::kLanes;  // of a panel
  using Session = NoSession;
  using Integers = typename Vector::Integers;

  // int16 [padded / 4, 2, 4]: of each 4 channels the high digits of 0, 2, 1 and 3, then the low.
  static void store(const BlockDigits& digits, int64_t padded, uint8_t* target) {
    for (int64_t k = 0; k < padded; k += kGroup, target += kGroup * kChannelBytes) {
      const int8_t* high = digits.high + k;
      const int8_t* low = digits.low + k;
      const int16_t pairs[] = {high[0], high[2], high[1], high[3], low[0], low[2], low[1], low[3]};
      std::memcpy(target, pairs, sizeof pairs);
    }
  }

  static void add_block(const BlockWork& work) {
    for (int64_t m = 0; m < work.rows;) {
      const int64_t rows = next_rows(work.rows - m, kMostRows);
      add_rows<kMostRows>(work, m, rows);
      m += rows;
    }
  }

  template <int kRows>
  VLLM_FORK_INLINE static void add_rows(const BlockWork& work, int64_t first, int64_t rows) {
    if (rows == kRows) return add_rows<kRows>(work, first);
    if constexpr (kRows > 1) add_rows<kRows - 1>(work, first, rows);
  }

  // Pairs of channels of a row, which every lane gets.
  VLLM_FORK_INLINE static Integers pair(const uint8_t* row, int index) {
    int32_t both;
    std::memcpy(&both, row + index * sizeof both, sizeof both);
    return Vector::broadcast(both);
  }

  template <int kRows>
  static void add_rows(const BlockWork& work, int64_t first) {
    Integers sums[kRows][kVectors];
    for (auto& row : sums) {
      for (auto& sum : row) sum = Vector::zero();
    }
    const uint8_t* rows = work.digits + first * work.row_bytes;
    const uint8_t* w = work.weights + kWordBytes;
    for (int64_t g = 0; g < work.groups; ++g) {
      Integers high[kVectors];
      Integers low[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        high[v] = Vector::load(w + v * sizeof(Integers));
        low[v] = Vector::load(w + kPanel * kGroup + v * sizeof(Integers));
      }
      add_pairs<kRows>(sums, rows, work.row_bytes, 0, high, low, Vector::even_bytes);
      add_pairs<kRows>(sums, rows, work.row_bytes, 1, high, low, Vector::odd_bytes);
      w += kGroupBytes;
      rows += kGroup * kChannelBytes;
    }
    finish<kRows>(work, first, sums);
  }

  // `widen` makes int16 of the even bytes, or of the odd ones.
  template <int kRows, typename Widen>
  VLLM_FORK_INLINE static void add_pairs(Integers (&sums)[kRows][kVectors], const uint8_t* rows,
                                         int64_t row_bytes, int odd, const Integers* high,
                                         const Integers* low, Widen widen) {
    Integers wide_high[kVectors];
    Integers both[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      wide_high[v] = widen(high[v]);
      both[v] = Vector::add16(Vector::times_256(wide_high[v]), widen(low[v]));
    }
    for (int m = 0; m < kRows; ++m) {
      const Integers x_high = pair(rows + m * row_bytes, odd);
      const Integers x_low = pair(rows + m * row_bytes, 2 + odd);
      for (int v = 0; v < kVectors; ++v) {
        sums[m][v] = Vector::add_products(sums[m][v], both[v], x_high);
        sums[m][v] = Vector::add_products(sums[m][v], wide_high[v], x_low);
      }
    }
  }

  template <int kRows>
  VLLM_FORK_INLINE static void finish(const BlockWork& work, int64_t first,
                                      const Integers (&sums)[kRows][kVectors]) {
    for (int m = 0; m < kRows; ++m) {
      const float row_scale = work.row_scales[(first + m) * work.scale_stride];
      const int64_t index = (first + m) * kPanel;
      for (int v = 0; v < kVectors; ++v) {
        const Integers words = Vector::load(work.weights + v * sizeof(Integers));
        Vector::add_scaled(work.sums, index + v * Vector::kLanes, sums[m][v], words, row_scale);
      }
    }
  }
};

}  // namespace
}  // namespace vllm_fork
