// The loops around the block kernels of the portable product, which the per-instruction-set
// translation units share.
//
// A `Kernel` multiplies the digits of one block. It has
//   kStep            input channels that its digits come in; those of a block are filled up to it
//   kChannelBytes    bytes of a channel's digits
//   kRowsTogether    rows whose digits are interleaved in steps; 1 if a row's lie together
//   kRowPadding      bytes between the digits of rows, or of rows together
//   kFewRows         up to so many rows it takes kPanelsOfFew panels at once, else kPanels
//   store(digits, padded, target)      writes the first step of a row's digits at `target`, and
//                                      those that follow kRowsTogether steps apart each
//   split(values, padded, scale, target)  instead: makes the digits of numbers, too
//   add_block(work)                    adds a block to sums (TileSums::add)
//   Session                            whose object lives while a thread multiplies
//
// Everything here has internal linkage, so that each of them gets its own copy compiled with its
// own flags (see portable/macros.h for what goes wrong otherwise).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/portable/product/block_digits.h"
#include "cpu/portable/product/product.h"
#include "cpu/portable/product/tile_sums.h"
#include "portable/product.h"

namespace vllm_fork {
namespace {

// So many bytes of a panel, or a block of it, are multiplied between asking for a part of a weight
// and needing it.
inline constexpr int64_t kAhead = 4096;

// One block of some panels, and the rows of a tile.
struct BlockWork {
  const uint8_t* weights;  // block words of the first panel
  int64_t panel_bytes;     // from panel to panel
  int64_t panels;
  int64_t groups;         // of 4 input channels
  const uint8_t* digits;  // of the first row
  int64_t row_bytes;      // from row to row, or from rows together to the next ones
  const float* row_scales;
  int64_t scale_stride;  // from row to row
  int64_t rows;
  int64_t ahead;    // bytes to what is soon needed, of the same panel or of the next tile's
  TileSums sums;       // [rows, panels * kPanel]
};

// Where the digits of rows lie, and behind them the scales, float [rows, blocks].
template <typename Kernel>
struct DigitLayout {
  int64_t row_bytes;
  int64_t blocks;
  int64_t digit_bytes;

  VLLM_FORK_INLINE DigitLayout(const ProductShape& shape, int64_t rows)
      : row_bytes(shape.padded_inputs(Kernel::kStep) * Kernel::kChannelBytes *
                      Kernel::kRowsTogether +
                  Kernel::kRowPadding),
        blocks(shape.blocks()),
        digit_bytes(divide_up(rows, Kernel::kRowsTogether) * row_bytes) {}

  VLLM_FORK_INLINE int64_t bytes(int64_t rows) const {
    return digit_bytes + rows * blocks * static_cast<int64_t>(sizeof(float));
  }

  // The digits of a row from an input channel on; channels are counted with what fills up blocks.
  VLLM_FORK_INLINE int64_t digits_at(int64_t row, int64_t channel) const {
    constexpr int64_t kStepBytes = Kernel::kStep * Kernel::kChannelBytes;
    return (row / Kernel::kRowsTogether) * row_bytes +
           channel * Kernel::kChannelBytes * Kernel::kRowsTogether +
           (row % Kernel::kRowsTogether) * (kStepBytes / kDigits);
  }

  VLLM_FORK_INLINE int64_t scale_at(int64_t row) const {
    return digit_bytes + row * blocks * static_cast<int64_t>(sizeof(float));
  }
};

// --- activations to digits -----------------------------------------------------------------------
template <typename Number>
VLLM_FORK_INLINE void load_some(const Number* x, const int8_t* equalised, float* values) {
  for (int64_t k = 0; k < kSplitAtOnce; ++k) values[k] = widen(x[k]);
  if (equalised == nullptr) return;
  for (int64_t k = 0; k < kSplitAtOnce; ++k) values[k] *= power_of_two(-equalised[k]);
}

template <typename Number>
VLLM_FORK_INLINE void load_block(const Number* x, const int8_t* equalised, int64_t count,
                                 float* values) {
  const int64_t left = count % kSplitAtOnce;
  const int64_t whole = count - left;
  for (int64_t k = 0; k < whole; k += kSplitAtOnce) {
    load_some(x + k, equalised ? equalised + k : nullptr, values + k);
  }
  if (left == 0) return;
  Number last[kSplitAtOnce];
  int8_t exponents[kSplitAtOnce];
  for (int64_t k = 0; k < kSplitAtOnce; ++k) last[k] = k < left ? x[whole + k] : Number{};
  if (equalised != nullptr) {
    for (int64_t k = 0; k < kSplitAtOnce; ++k) {
      exponents[k] = k < left ? equalised[whole + k] : int8_t{0};
    }
  }
  load_some(last, equalised ? exponents : nullptr, values + whole);
}

template <typename Kernel, typename Number>
VLLM_FORK_INLINE void split_row(const ProductShape& shape, const Number* x,
                                const int8_t* equalised, uint8_t* digits, int64_t row,
                                const DigitLayout<Kernel>& layout) {
  auto* scale = reinterpret_cast<float*>(digits + layout.scale_at(row));
  const int64_t segment_inputs = shape.segment_inputs();
  int64_t channel = 0;
  int64_t padded_channel = 0;
  int64_t left = segment_inputs;  // of the segment
  for (int64_t block = 0; block < layout.blocks; ++block) {
    alignas(64) float values[kBlock];
    const int64_t count = least(kBlock, left);
    const int64_t padded = divide_up(count, Kernel::kStep) * Kernel::kStep;
    load_block(x + channel, equalised ? equalised + channel : nullptr, count, values);
    const int exponent = exponent_of_block(values, count, kLeastRowExponent);
    uint8_t* target = digits + layout.digits_at(row, padded_channel);
    if constexpr (requires { &Kernel::split; }) {
      Kernel::split(values, padded, power_of_two(-exponent), target);
    } else {
      BlockDigits split;
      split_block<true>(values, count, power_of_two(-exponent), split);
      pad_digits(count, padded, split);
      Kernel::store(split, padded, target);
    }
    scale[block] = exponent > kGreatestRowExponent ? std::numeric_limits<float>::quiet_NaN()
                                                   : power_of_two(exponent);
    channel += count;
    padded_channel += padded;
    left = left == count ? segment_inputs : left - count;
  }
}

template <typename Kernel, typename Number>
VLLM_FORK_INLINE void split_rows_of(const ProductShape& shape, const ProductRows& x,
                                    int64_t first, int64_t last, uint8_t* digits) {
  const DigitLayout<Kernel> layout(shape, x.rows);
  const auto* numbers = static_cast<const Number*>(x.data);
  for (int64_t row = first; row < last; ++row) {
    split_row(shape, numbers + row * x.stride, x.equalised, digits, row, layout);
  }
}

template <typename Kernel>
void split_rows(const ProductShape& shape, const ProductRows& x, int64_t first, int64_t last,
                uint8_t* digits) {
  switch (x.format) {
    case Format::kFloat32: return split_rows_of<Kernel, float>(shape, x, first, last, digits);
    case Format::kFloat16: return split_rows_of<Kernel, Float16>(shape, x, first, last, digits);
    case Format::kBfloat16:
      return split_rows_of<Kernel, Bfloat16>(shape, x, first, last, digits);
  }
}

template <typename Kernel>
int64_t digits_bytes(const ProductShape& shape, int64_t rows) {
  return DigitLayout<Kernel>(shape, rows).bytes(rows);
}

// --- tiles ---------------------------------------------------------------------------------------
// A tile is some panels and some rows. Tiles of the same panels follow each other, so that the
// panels stay in the cache.
template <typename Kernel>
struct Tiling {
  int64_t panels;  // of a tile
  int64_t rows;
  int64_t row_tiles;
  int64_t count;

  VLLM_FORK_INLINE Tiling(const ProductShape& shape, int64_t num_rows)
      : panels(num_rows <= Kernel::kFewRows ? Kernel::kPanelsOfFew : Kernel::kPanels),
        rows(kTileSums / (panels * kPanel)),
        row_tiles(divide_up(num_rows, rows)),
        count(row_tiles * divide_up(shape.panels(), panels)) {}
};

template <typename Kernel>
int64_t num_tiles(const ProductShape& shape, int64_t rows) {
  return Tiling<Kernel>(shape, rows).count;
}

// --- the product of a tile -----------------------------------------------------------------------
// Adds each segment's blocks in order, and the segments by a tree of halves: with segment s, as
// many levels are folded as s + 1 has factors of two. Returns the level with the sum of all.
// The tile that comes next lies `next_tile` bytes behind this one.
template <typename Kernel>
VLLM_FORK_INLINE const float* sum_blocks(const ProductShape& shape, BlockWork work,
                                         int64_t next_tile, float (*levels)[kTileSums]) {
  const uint8_t* end = work.weights + shape.panel_bytes();
  int64_t level = 0;
  for (int64_t segment = 0; segment < shape.segments; ++segment) {
    const int64_t folds = trailing_ones(segment);
    work.sums = {.at = levels[level], .to = levels[level], .folds = 0, .begins = true};
    for (int64_t block = 0; block < shape.segment_blocks(); ++block) {
      const int64_t inputs = shape.block_inputs(block);
      const bool is_last = block + 1 == shape.segment_blocks();
      work.groups = divide_up(inputs, kGroup);
      work.ahead = std::max(kAhead, kWordBytes + work.groups * kGroupBytes);
      if (work.weights + work.ahead >= end) work.ahead += next_tile - shape.panel_bytes();
      if (is_last) {
        work.sums.folds = folds;
        work.sums.to = levels[level - folds];
      }
      Kernel::add_block(work);
      work.weights += kWordBytes + work.groups * kGroupBytes;
      work.digits += divide_up(inputs, Kernel::kStep) * Kernel::kStep * Kernel::kChannelBytes *
                     Kernel::kRowsTogether;
      ++work.row_scales;
      work.sums.begins = false;
    }
    level += 1 - folds;
  }
  return levels[0];
}

template <typename Number>
VLLM_FORK_INLINE void write_row(const float* sums, const float* bias, int64_t count,
                                Number* target) {
  if (bias == nullptr) {
    for (int64_t n = 0; n < count; ++n) target[n] = narrow<Number>(sums[n]);
  } else {
    for (int64_t n = 0; n < count; ++n) target[n] = narrow<Number>(sums[n] + normal_bias(bias[n]));
  }
}

template <typename Number>
VLLM_FORK_INLINE void write_tile(const ProductShape& shape, const float* sums, int64_t width,
                                 int64_t row, int64_t rows, int64_t output,
                                 const ProductOutput& to) {
  const int64_t count = std::min(width, shape.outputs - output);
  const float* bias = to.bias ? to.bias + output : nullptr;
  auto* target = static_cast<Number*>(to.data) + row * shape.outputs + output;
  for (int64_t m = 0; m < rows; ++m) {
    write_row(sums + m * width, bias, count, target + m * shape.outputs);
  }
}

template <typename Kernel>
VLLM_FORK_INLINE void multiply_tile(const ProductShape& shape, const uint8_t* packed,
                                    const uint8_t* digits, int64_t all_rows,
                                    const Tiling<Kernel>& tiling, int64_t tile,
                                    const ProductOutput& output) {
  const DigitLayout<Kernel> layout(shape, all_rows);
  const int64_t row = tile % tiling.row_tiles * tiling.rows;
  const int64_t rows = std::min(tiling.rows, all_rows - row);
  const int64_t panel = tile / tiling.row_tiles * tiling.panels;
  const int64_t panels = std::min(tiling.panels, shape.panels() - panel);
  alignas(64) float levels[kLevels][kTileSums];
  const BlockWork work{
      .weights = packed + panel * shape.panel_bytes(),
      .panel_bytes = shape.panel_bytes(),
      .panels = panels,
      .groups = 0,
      .digits = digits + layout.digits_at(row, 0),
      .row_bytes = layout.row_bytes,
      .row_scales = reinterpret_cast<const float*>(digits + layout.scale_at(row)),
      .scale_stride = layout.blocks,
      .rows = rows,
      .ahead = 0,
      .sums = {},
  };
  const bool stays = (tile + 1) % tiling.row_tiles != 0;  // the next tile has the same panels
  const int64_t next_tile = stays ? 0 : panels * shape.panel_bytes();
  const float* sums = sum_blocks<Kernel>(shape, work, next_tile, levels);
  const int64_t width = panels * kPanel;
  const int64_t first = panel * kPanel;
  switch (output.format) {
    case Format::kFloat32:
      return write_tile<float>(shape, sums, width, row, rows, first, output);
    case Format::kFloat16: return write_tile<Float16>(shape, sums, width, row, rows, first, output);
    case Format::kBfloat16:
      return write_tile<Bfloat16>(shape, sums, width, row, rows, first, output);
  }
}

template <typename Kernel>
void multiply(const ProductShape& shape, const uint8_t* packed, const uint8_t* digits,
              int64_t rows, int64_t first, int64_t last, const ProductOutput& output) {
  const typename Kernel::Session session;
  const Tiling<Kernel> tiling(shape, rows);
  for (int64_t tile = first; tile < last; ++tile) {
    multiply_tile(shape, packed, digits, rows, tiling, tile, output);
  }
}

template <typename Kernel>
inline constexpr ProductKernel kProductKernel{digits_bytes<Kernel>, split_rows<Kernel>,
                                              num_tiles<Kernel>, multiply<Kernel>};

// Rows are multiplied at most kMost at once; how many groups take `rows`, and how evenly.
VLLM_FORK_INLINE int64_t next_rows(int64_t rows, int64_t most) {
  return divide_up(rows, divide_up(rows, most));
}

struct NoSession {
  NoSession() {}
};

}  // namespace
}  // namespace vllm_fork
