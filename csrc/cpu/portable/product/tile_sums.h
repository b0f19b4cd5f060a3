// The sums of a tile of outputs and rows: blocks are added to a segment's sums, segments by halves.
//
// Everything here has internal linkage (see portable/macros.h for what goes wrong otherwise).
#pragma once

#include <cstdint>

#include "portable/product_layout.h"

namespace vllm_fork {
namespace {

// What is not yet added of the halving tree over segments has at most 4 levels, float
// [kLevels, kTileSums].
inline constexpr int64_t kLevels = 4;
inline constexpr int64_t kTileSums = 96 * 2 * kPanel;

VLLM_FORK_INLINE int64_t trailing_ones(int64_t number) {
  int64_t count = 0;
  for (; number & 1; number >>= 1) ++count;
  return count;
}

// Where a block's terms are added. A segment's last block folds the levels that are complete with
// it, so that no other pass over the sums is needed.
struct TileSums {
  const float* at;  // the segment's level
  float* to;        // the level that they become: `folds` before it, whose sums are added
  int64_t folds;
  bool begins;  // the segment begins with this block: there is nothing yet that it is added to

  VLLM_FORK_INLINE TileSums behind(int64_t count) const {
    return {at + count, to + count, folds, begins};
  }

  // Adds to the sums from `index` on. Floats are a float or a register of them. No term is -0.
  template <typename Floats>
  VLLM_FORK_INLINE void add(int64_t index, Floats term) const {
    const float* source = at + index;
    Floats sum = begins ? term : load<Floats>(source) + term;
    if (folds > 0) sum = load<Floats>(source - kTileSums) + sum;
    if (folds > 1) sum = load<Floats>(source - 2 * kTileSums) + sum;
    if (folds > 2) sum = load<Floats>(source - 3 * kTileSums) + sum;
    *reinterpret_cast<Floats*>(to + index) = sum;
  }

 private:
  template <typename Floats>
  VLLM_FORK_INLINE static Floats load(const float* source) {
    return *reinterpret_cast<const Floats*>(source);
  }
};

}  // namespace
}  // namespace vllm_fork
