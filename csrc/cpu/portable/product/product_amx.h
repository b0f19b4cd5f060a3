// The block kernel for a matrix unit with AMX's tiles: 16 rows of activations times two panels.
//
// `Tiles` is that unit, or an emulation of it:
//   Session                     sets all tiles to 16 rows of 64 bytes, and releases them
//   zero<Tile>()
//   load<Tile>(source, stride)  rows `stride` bytes apart
//   store<Tile>(target, stride)
//   dot<Sum, A, B>()            TDPBSSD: int32 Sum[m][n] += int8 A[m][4 k + i] * B[k][4 n + i]
//   add_row(sums, high, mixed, words, row_scale)
//                               add_block_sum for the 16 outputs that have these block words
//
// A step is 64 input channels. If a block has no multiple of them, the digits of activations are
// filled up with zeros, and what a tile then reads behind the block's weights does not matter.
#pragma once

#include <cstring>

#include "cpu/portable/product/product_loop.h"

namespace vllm_fork {
namespace {

template <typename Tiles>
struct AmxKernel {
  static constexpr int64_t kStep = 64;
  static constexpr int64_t kChannelBytes = kDigits;
  static constexpr int64_t kRowsTogether = 16;
  static constexpr int64_t kRowPadding = 0;
  static constexpr int64_t kFewRows = 0;
  static constexpr int64_t kPanelsOfFew = 2;
  static constexpr int64_t kPanels = 2;
  static constexpr int64_t kTileBytes = kRowsTogether * kStep;
  static constexpr int64_t kStepGroups = kStep / kGroup;
  using Session = typename Tiles::Session;

  // int32 [panels, 2, 16 rows, 16 outputs]: the sums of high * high, and those of high * low.
  struct Sums {
    alignas(64) int32_t values[kPanels][2][kRowsTogether][kPanel];
  };

  // int8 [padded / 64, 2, 16 rows, 64], of which this is one row.
  static void store(const BlockDigits& digits, int64_t padded, uint8_t* target) {
    for (int64_t k = 0; k < padded; k += kStep, target += kDigits * kTileBytes) {
      std::memcpy(target, digits.high + k, kStep);
      std::memcpy(target + kTileBytes, digits.low + k, kStep);
    }
  }

  // The matrix unit would wait while sums are scaled and added up. So that is done for the 16 rows
  // before, a part after each step.
  static void add_block(const BlockWork& work) {
    Sums sums[2];
    const uint8_t* digits = work.digits;
    int64_t m = 0;
    for (; m < work.rows; m += kRowsTogether, digits += work.row_bytes) {
      const int64_t index = m / kRowsTogether;
      const Finish before{work, m - kRowsTogether, sums[(index + 1) % 2]};
      if (work.panels == 1) {
        multiply_one(work, digits, before, sums[index % 2]);
      } else {
        multiply_two(work, digits, before, sums[index % 2]);
      }
    }
    const Finish last{work, m - kRowsTogether, sums[(m / kRowsTogether + 1) % 2]};
    for (int64_t g = 0; g < work.groups; g += kStepGroups) last.do_part(g);
  }

  // What is left to do of 16 rows. There are none before the first.
  struct Finish {
    const BlockWork& work;
    int64_t first;
    const Sums& sums;

    // The part of the rows that belongs to a step, which begins with group g.
    VLLM_FORK_INLINE void do_part(int64_t g) const {
      const int64_t steps = divide_up(work.groups, kStepGroups);
      const int64_t step = g / kStepGroups;
      const int64_t rows = first < 0 ? 0 : std::min(kRowsTogether, work.rows - first);
      for (int64_t n = 0; n < work.panels; ++n) {
        finish(work, first, rows * step / steps, rows * (step + 1) / steps, n, sums);
      }
    }
  };

  // Tiles 0 and 1 are the first panel's sums, 2 and 3 the second's, 4 and 5 the digits of
  // activations, 6 and 7 those of the weight.
  VLLM_FORK_INLINE static void multiply_one(const BlockWork& work, const uint8_t* digits,
                                            const Finish& before, Sums& sums) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    const uint8_t* weights = work.weights + kWordBytes;
    for (int64_t g = 0; g < work.groups; g += kStepGroups) {
      load_digits(digits);
      add_panel<0, 1>(weights);
      before.do_part(g);
      digits += kDigits * kTileBytes;
      weights += kStepGroups * kGroupBytes;
    }
    store_sums<0, 1>(sums, 0);
  }

  VLLM_FORK_INLINE static void multiply_two(const BlockWork& work, const uint8_t* digits,
                                            const Finish& before, Sums& sums) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    Tiles::template zero<2>();
    Tiles::template zero<3>();
    const uint8_t* weights = work.weights + kWordBytes;
    for (int64_t g = 0; g < work.groups; g += kStepGroups) {
      load_digits(digits);
      add_panel<0, 1>(weights);
      add_panel<2, 3>(weights + work.panel_bytes);
      before.do_part(g);
      digits += kDigits * kTileBytes;
      weights += kStepGroups * kGroupBytes;
    }
    store_sums<0, 1>(sums, 0);
    store_sums<2, 3>(sums, 1);
  }

  VLLM_FORK_INLINE static void load_digits(const uint8_t* digits) {
    Tiles::template load<4>(digits, kStep);
    Tiles::template load<5>(digits + kTileBytes, kStep);
  }

  template <int kHigh, int kMixed>
  VLLM_FORK_INLINE static void add_panel(const uint8_t* weights) {
    Tiles::template load<6>(weights, kGroupBytes);
    Tiles::template load<7>(weights + kPanel * kGroup, kGroupBytes);
    Tiles::template dot<kHigh, 4, 6>();
    Tiles::template dot<kMixed, 4, 7>();
    Tiles::template dot<kMixed, 5, 6>();
  }

  template <int kHigh, int kMixed>
  VLLM_FORK_INLINE static void store_sums(Sums& sums, int panel) {
    Tiles::template store<kHigh>(sums.values[panel][0], kPanel * sizeof(int32_t));
    Tiles::template store<kMixed>(sums.values[panel][1], kPanel * sizeof(int32_t));
  }

  // Scales and adds up the sums of rows [begin, end) of the 16 from `first` on.
  VLLM_FORK_INLINE static void finish(const BlockWork& work, int64_t first, int64_t begin,
                                      int64_t end, int64_t panel, const Sums& sums) {
    const uint8_t* words = work.weights + panel * work.panel_bytes;
    for (int64_t m = begin; m < end; ++m) {
      const float row_scale = work.row_scales[(first + m) * work.scale_stride];
      const int64_t index = ((first + m) * work.panels + panel) * kPanel;
      Tiles::add_row(work.sums, index, sums.values[panel][0][m], sums.values[panel][1][m], words,
                     row_scale);
    }
  }
};

}  // namespace
}  // namespace vllm_fork
