// Where the digits of a packed weight and of rows of activations lie on a GPU.
//
// A tensor core multiplies 16 outputs of a weight with 8 rows in a step of 32 input channels, a
// warpgroup many of both. Digits lie in tiles of a step, in matrices of 16 channels of 8 outputs or
// rows, as ldmatrix takes them and warpgroups find them in shared memory:
//
//   int8 [2 digits, 2 halves of the step, 8, 16]
//
// is a tile of rows; a tile of a weight is two of these, of 8 outputs each. What belongs to a step
// of several tiles lies in one piece: of four panels of a weight, and of four tiles of rows where
// there are more rows than kFewRows.
//
// Blocks are filled up with zeros to whole steps.
//
// A packed weight is its tiles, uint8 [groups of panels, steps, kPanelGroup, kWeightTile], and
// behind them the biased exponents of 2^(8 + e), uint8 [groups of panels, blocks, kPanelGroup,
// kPanel]. It is as large as the CPU's, 16 bits a number and one byte for each row of a block, but
// laid out differently, and filled up with zeros to whole groups.
#pragma once

#include <cstdint>

#include "cuda/primitives/device.cuh"
#include "portable/product_layout.h"

namespace vllm_fork {

inline constexpr int kStep = 32;                                // input channels of an instruction
inline constexpr int kStepsOfBlock = static_cast<int>(kBlock) / kStep;
inline constexpr int kOctet = 8;                                // input channels of a lane
inline constexpr int kOctetsOfStep = kStep / kOctet;
inline constexpr int kRowsOfTile = 8;
inline constexpr int kHalf = kStep / 2;                         // of a step's input channels
inline constexpr int kRowTile = 2 * kRowsOfTile * kStep;        // bytes
inline constexpr int kRowScales = kRowsOfTile * 4;              // bytes
inline constexpr int kWeightTile = 2 * kRowTile;                // bytes
inline constexpr int kOutputs = static_cast<int>(kPanel);       // of a tile of a weight
inline constexpr int kPanelGroupBits = 2;
inline constexpr int kPanelGroup = 1 << kPanelGroupBits;
inline constexpr int kRowGroupBits = 2;                         // of many rows
inline constexpr int kFewRows = 16;                             // each tile of so many is a group
static_assert(kOutputs == 2 * kRowsOfTile && kOctetsOfStep == 4);

// Where eight channels of a row, or of an output, lie in eight such: octet i of a step has channels
// 8 i and on.
VLLM_FORK_INLINE int octet_of_tile(int row, int digit, int octet) {
  const int matrix = digit * 2 + octet / 2;
  return (matrix * kRowsOfTile + row) * kHalf + octet % 2 * kOctet;
}

// Where a tile is of those that lie as [groups, steps, 2^group_bits tiles].
VLLM_FORK_INLINE int64_t place_in_groups(int64_t tile, int64_t step, int64_t steps,
                                         int group_bits) {
  const int64_t of_group = tile & ((1 << group_bits) - 1);
  return (((tile >> group_bits) * steps + step) << group_bits) + of_group;
}

// A shape in steps. A segment's blocks have kStepsOfBlock steps each, its last has `last_steps`.
struct StepCounts {
  int segments;
  int segment_blocks;
  int last_steps;

  VLLM_FORK_INLINE explicit StepCounts(const ProductShape& shape)
      : segments(static_cast<int>(shape.segments)),
        segment_blocks(static_cast<int>(shape.segment_blocks())),
        last_steps(static_cast<int>(
            divide_up(shape.block_inputs(shape.segment_blocks() - 1), kStep))) {}

  VLLM_FORK_INLINE int segment_steps() const {
    return (segment_blocks - 1) * kStepsOfBlock + last_steps;
  }
  VLLM_FORK_INLINE int steps() const { return segments * segment_steps(); }
  VLLM_FORK_INLINE int blocks() const { return segments * segment_blocks; }

  // Of a block of a segment.
  VLLM_FORK_INLINE int steps_of(int block) const {
    return block + 1 < segment_blocks ? kStepsOfBlock : last_steps;
  }
};

// One block of the input channels: which steps and channels it is.
struct BlockPlace {
  int block;
  int step;
  int steps;
  int64_t channel;
  int channels;

  VLLM_FORK_INLINE BlockPlace(const ProductShape& shape, const StepCounts& counts, int index)
      : block(index) {
    const int segment = index / counts.segment_blocks;
    const int of_segment = index % counts.segment_blocks;
    step = segment * counts.segment_steps() + of_segment * kStepsOfBlock;
    steps = counts.steps_of(of_segment);
    channel = segment * shape.segment_inputs() + of_segment * kBlock;
    channels = static_cast<int>(shape.block_inputs(of_segment));
  }
};

// The bytes of a packed weight.
struct WeightTiles {
  int64_t panels;  // of whole groups
  int64_t steps;
  int64_t blocks;

  VLLM_FORK_INLINE explicit WeightTiles(const ProductShape& shape)
      : panels(divide_up(shape.panels(), kPanelGroup) * kPanelGroup),
        steps(StepCounts(shape).steps()),
        blocks(shape.blocks()) {}

  VLLM_FORK_INLINE int64_t tile_at(int64_t panel, int64_t step) const {
    return place_in_groups(panel, step, steps, kPanelGroupBits) * kWeightTile;
  }

  // Eight channels of an output of a panel.
  VLLM_FORK_INLINE int64_t octet_at(int64_t panel, int64_t step, int digit, int octet,
                                    int output) const {
    return tile_at(panel, step) + output / kRowsOfTile * kRowTile +
           octet_of_tile(output % kRowsOfTile, digit, octet);
  }

  VLLM_FORK_INLINE int64_t exponents_at(int64_t panel, int64_t block) const {
    return tile_at(panels, 0) + place_in_groups(panel, block, blocks, kPanelGroupBits) * kOutputs;
  }

  VLLM_FORK_INLINE int64_t bytes() const { return exponents_at(panels, 0); }
};

// The bytes of the digits of rows: tiles, uint8 [groups, steps, tiles of a group, kRowTile], and
// behind them 2^e of each block, float [groups, blocks, tiles of a group, kRowsOfTile]; NaN in a
// block that is out of range. What belongs to rows that the last group lacks does not matter.
struct RowTiles {
  int group_bits;
  int64_t tiles;  // of whole groups
  int64_t steps;
  int64_t blocks;

  VLLM_FORK_INLINE RowTiles(const ProductShape& shape, int64_t rows)
      : group_bits(rows > kFewRows ? kRowGroupBits : 0),
        tiles(divide_up(rows, kRowsOfTile << group_bits) << group_bits),
        steps(StepCounts(shape).steps()),
        blocks(shape.blocks()) {}

  VLLM_FORK_INLINE int64_t tile_at(int64_t tile, int64_t step) const {
    return place_in_groups(tile, step, steps, group_bits) * kRowTile;
  }

  // Eight channels of a row.
  VLLM_FORK_INLINE int64_t octet_at(int64_t row, int64_t step, int digit, int octet) const {
    return tile_at(row / kRowsOfTile, step) +
           octet_of_tile(static_cast<int>(row % kRowsOfTile), digit, octet);
  }

  VLLM_FORK_INLINE int64_t scales_at(int64_t tile, int64_t block) const {
    return tile_at(tiles, 0) + place_in_groups(tile, block, blocks, group_bits) * kRowScales;
  }

  VLLM_FORK_INLINE int64_t scale_at(int64_t row, int64_t block) const {
    return scales_at(row / kRowsOfTile, block) + row % kRowsOfTile * 4;
  }

  VLLM_FORK_INLINE int64_t bytes() const { return scales_at(tiles, 0); }
};

}  // namespace vllm_fork
