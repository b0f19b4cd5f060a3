#include "cpu/torch_order/single_row/multiply_in_order.h"

#include <algorithm>

#include "cpu/isa.h"
#include "cpu/team/team.h"

namespace vllm_fork {
namespace {

// [groups, size, 16]: what a column of x is in 16 rows lies together.
std::vector<float> by_lanes(const float* source, int64_t rows, int64_t size) {
  const int64_t groups = (rows + kOrderedLanes - 1) / kOrderedLanes;
  std::vector<float> lanes(groups * size * kOrderedLanes);
  for (int64_t m = 0; m < rows; ++m) {
    float* target = &lanes[m / kOrderedLanes * size * kOrderedLanes + m % kOrderedLanes];
    for (int64_t k = 0; k < size; ++k) target[k * kOrderedLanes] = source[m * size + k];
  }
  return lanes;
}

// Calls function(range, first, last) for each part of [first, last) that is added in one order.
template <typename Function>
void by_range(const std::vector<SumRange>& ranges, int64_t first, int64_t last,
              const Function& function) {
  for (const SumRange& range : ranges) {
    const int64_t end = std::min(range.end, last);
    if (first < end) function(range, first, end);
    first = std::max(first, end);
  }
}

}  // namespace

void multiply_in_order(const OrderedOperands& operands, const std::vector<SumRange>& ranges,
                       float* target) {
  const int64_t rows = operands.rows, outputs = operands.outputs, size = operands.size;
  const std::vector<float> lanes = by_lanes(operands.x, rows, size);
  const int64_t groups = (rows + kOrderedLanes - 1) / kOrderedLanes;
  constexpr int64_t kTile = 4 * kOrderedOutputs;
  // Waking a thread takes as long as this many products.
  constexpr int64_t kWorthAThread = 1 << 17;
  const int64_t of_a_tile = std::max<int64_t>(1, kTile * size * groups);
  const int64_t grain = std::max<int64_t>(1, kWorthAThread / of_a_tile);
  const int64_t tiles = (outputs + kTile - 1) / kTile;
  share_work(0, tiles, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(groups * kTile * kOrderedLanes);
    const auto multiply = [&](const SumRange& range, int64_t first, int64_t last) {
      const int64_t count = last - first;
      chosen_ordered_products()({lanes.data(), groups, size,
                                 operands.weight + first * operands.weight_row, count,
                                 operands.weight_row, operands.weight_column,
                                 operands.bias ? operands.bias + first : nullptr, range.steps,
                                 range.num_steps, range.zero, sums.data()});
      for (int64_t m = 0; m < rows; ++m) {
        const float* own = &sums[m / kOrderedLanes * count * kOrderedLanes + m % kOrderedLanes];
        for (int64_t n = 0; n < count; ++n) {
          target[m * outputs + first + n] = own[n * kOrderedLanes];
        }
      }
    };
    for (int64_t tile = begin; tile < end; ++tile) {
      by_range(ranges, tile * kTile, std::min(outputs, (tile + 1) * kTile), multiply);
    }
  });
}

}  // namespace vllm_fork
