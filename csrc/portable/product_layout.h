// Segments and blocks of the portable product, and the layout of a packed weight.
//
// A packed weight is a sequence of panels of 16 outputs; a panel is a sequence of blocks, in the
// order of the input channels; a block is
//
//   int32 [16]                 a block word for each output (below)
//   int8  [groups, 2, 16, 4]   for each 4 channels: the high digits of 16 outputs, the low digits
//
// Outputs and channels that a panel or a block lacks at its end are zeros. So a weight is read once,
// front to back, and 64 bytes are what a register of AVX-512 or a row of an AMX tile takes. Behind
// the last panel are kPackedSlack bytes that may be read and do not count.
#pragma once

#include <cstdint>

#include "portable/macros.h"

namespace vllm_fork {

inline constexpr int64_t kBlock = 256;       // input channels that share an exponent
inline constexpr int64_t kMostSegments = 8;  // of all input channels
inline constexpr int64_t kPanel = 16;        // outputs side by side
inline constexpr int64_t kGroup = 4;         // channels side by side
inline constexpr int64_t kDigits = 2;
inline constexpr int64_t kGroupBytes = kDigits * kPanel * kGroup;
inline constexpr int64_t kWordBytes = kPanel * 4;
inline constexpr int64_t kPackedSlack = 2048;
inline constexpr int64_t kPackedAlignment = 64;
inline constexpr int64_t kMostInputs = 131072;  // with more, a sum might overflow

VLLM_FORK_INLINE constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

VLLM_FORK_INLINE constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// A product with a weight [outputs, inputs] whose inputs are `segments` equal segments.
struct ProductShape {
  int64_t outputs;
  int64_t inputs;
  int64_t segments;

  VLLM_FORK_INLINE int64_t segment_inputs() const { return inputs / segments; }
  VLLM_FORK_INLINE int64_t segment_blocks() const { return divide_up(segment_inputs(), kBlock); }
  VLLM_FORK_INLINE int64_t blocks() const { return segments * segment_blocks(); }
  VLLM_FORK_INLINE int64_t panels() const { return divide_up(outputs, kPanel); }

  // The number of input channels of a block, of those in its segment.
  VLLM_FORK_INLINE int64_t block_inputs(int64_t block_of_segment) const {
    return least(kBlock, segment_inputs() - block_of_segment * kBlock);
  }

  // Input channels, when those of each block are filled up to a multiple of `step`.
  VLLM_FORK_INLINE int64_t padded_inputs(int64_t step) const {
    const int64_t last = segment_blocks() - 1;
    return segments * (last * kBlock + divide_up(block_inputs(last), step) * step);
  }

  VLLM_FORK_INLINE int64_t panel_bytes() const {
    return blocks() * kWordBytes + padded_inputs(kGroup) / kGroup * kGroupBytes;
  }

  VLLM_FORK_INLINE int64_t packed_bytes() const { return panels() * panel_bytes() + kPackedSlack; }
};

// The digits of a block, behind its words.
VLLM_FORK_INLINE int64_t digit_offset(int64_t channel, int64_t digit, int64_t output) {
  return kWordBytes + (channel / kGroup) * kGroupBytes + digit * kPanel * kGroup + output * kGroup +
         channel % kGroup;
}

// A block word: the biased exponent of 2^(8 + e), and above it 257 * (sum of the high digits) + (sum
// of the low digits), which is less than 2^23. 128 times that is what digits of activations that
// are stored with 128 added make too much of the block's sum.
VLLM_FORK_INLINE int32_t block_word(int exponent, int32_t high_sum, int32_t low_sum) {
  const auto sums = static_cast<uint32_t>(257 * high_sum + low_sum);
  return static_cast<int32_t>((sums << 8) | static_cast<uint32_t>(exponent + 8 + 127));
}

VLLM_FORK_INLINE uint32_t scale_bits(int32_t word) {
  return (static_cast<uint32_t>(word) & 255) << 23;
}

VLLM_FORK_INLINE int32_t excess_of_128(int32_t word) { return (word >> 8) * 128; }

}  // namespace vllm_fork
