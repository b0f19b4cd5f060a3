// The CPU implementation of ordered_products.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "bindings/argument_checks.h"
#include "bindings/cpu_operators.h"
#include "cpu/isa.h"

namespace vllm_fork {
namespace {

constexpr const char* kOrdered = "ordered_products";

// Outputs of a weight that are added in one order.
struct Range {
  int64_t end;
  float zero;
  const SumStep* steps;
  int64_t num_steps;
};

void check_step(const SumStep& step, int64_t index, int64_t size, bool has_bias) {
  const auto is_sum = [](int32_t sum) { return 0 <= sum && sum < kMostSums; };
  const int64_t last = step.first + (step.count - 1) * static_cast<int64_t>(step.stride);
  const bool is_right = step.count > 0 ? step.first >= 0 && step.stride > 0 && last < size
                        : step.count == 0 ? is_sum(step.first)
                                          : has_bias;
  check(is_sum(step.sum) && is_right, kOrdered, ": row ", index, " of order is no step: ",
        step.sum, ", ", step.first, ", ", step.stride, ", ", step.count, ", ", step.is_fused, ".");
}

// A row of order is a step, or (-1, end, whether it begins with -0, number of steps behind it, 0).
std::vector<Range> ranges_of(const Tensor& order, int64_t outputs, int64_t size, bool has_bias) {
  check_dtype(kOrdered, "order", order, ScalarType::Int);
  check_dim(kOrdered, "order", order, 2);
  check_contiguous(kOrdered, "order", order);
  check(order.size(1) == 5, kOrdered, ": order must have 5 columns, but has ", order.size(1), ".");
  const auto* rows = static_cast<const SumStep*>(order.data_ptr());
  std::vector<Range> ranges;
  int64_t end = 0;
  for (int64_t i = 0; i < order.size(0);) {
    const SumStep& head = rows[i];
    const bool is_head = head.sum == -1 && head.first > end && head.count >= 0;
    check(is_head && i + 1 + head.count <= order.size(0), kOrdered, ": row ", i,
          " of order begins no range of outputs.");
    for (int64_t k = i + 1; k <= i + head.count; ++k) check_step(rows[k], k, size, has_bias);
    end = head.first;
    ranges.push_back({end, head.stride ? -0.0f : 0.0f, rows + i + 1, head.count});
    i += 1 + head.count;
  }
  check(end == outputs, kOrdered, ": order is that of ", end, " outputs, and weight has ", outputs,
        ".");
  return ranges;
}

void check_ordered(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  check(chosen_ordered_products() != nullptr, kOrdered, ": this CPU has no AVX-512.");
  for (const auto& [name, tensor] : {std::pair("x", x), std::pair("weight", weight)}) {
    check_dtype(kOrdered, name, tensor, ScalarType::Float);
    check_dim(kOrdered, name, tensor, 2);
  }
  check_contiguous(kOrdered, "x", x);
  check(x.size(1) == weight.size(1), kOrdered, ": weight must have ", x.size(1),
        " columns, as x has, but has ", weight.size(1), ".");
  if (!bias) return;
  check_dtype(kOrdered, "bias", *bias, ScalarType::Float);
  check_dim(kOrdered, "bias", *bias, 1);
  check_contiguous(kOrdered, "bias", *bias);
  check_length(kOrdered, "bias", *bias, weight.size(0), "rows of weight");
}

// [groups, size, 16]: what a column of x is in 16 rows lies together.
std::vector<float> by_lanes(const Tensor& x) {
  const int64_t rows = x.size(0), size = x.size(1);
  const int64_t groups = (rows + kOrderedLanes - 1) / kOrderedLanes;
  const auto* source = static_cast<const float*>(x.data_ptr());
  std::vector<float> lanes(groups * size * kOrderedLanes);
  for (int64_t m = 0; m < rows; ++m) {
    float* target = &lanes[m / kOrderedLanes * size * kOrderedLanes + m % kOrderedLanes];
    for (int64_t k = 0; k < size; ++k) target[k * kOrderedLanes] = source[m * size + k];
  }
  return lanes;
}

// Calls function(range, first, last) for each part of [first, last) that is added in one order.
template <typename Function>
void by_range(const std::vector<Range>& ranges, int64_t first, int64_t last,
              const Function& function) {
  for (const Range& range : ranges) {
    const int64_t end = std::min(range.end, last);
    if (first < end) function(range, first, end);
    first = std::max(first, end);
  }
}

}  // namespace

Tensor ordered_products(Tensor x, Tensor weight, std::optional<Tensor> bias, Tensor order) {
  check_ordered(x, weight, bias);
  const int64_t rows = x.size(0), outputs = weight.size(0), size = x.size(1);
  const std::vector<Range> ranges = ranges_of(order, outputs, size, bias.has_value());
  const std::vector<float> lanes = by_lanes(x);
  const int64_t groups = (rows + kOrderedLanes - 1) / kOrderedLanes;
  Tensor result = torch::stable::new_empty(x, {rows, outputs});
  const auto* from = static_cast<const float*>(weight.data_ptr());
  const auto* offsets = bias ? static_cast<const float*>(bias->data_ptr()) : nullptr;
  auto* target = static_cast<float*>(result.data_ptr());
  constexpr int64_t kTile = 4 * kOrderedOutputs;
  // Waking a thread takes as long as this many products.
  constexpr int64_t kWorthAThread = 1 << 17;
  const int64_t of_a_tile = std::max<int64_t>(1, kTile * size * groups);
  const int64_t grain = std::max<int64_t>(1, kWorthAThread / of_a_tile);
  const int64_t tiles = (outputs + kTile - 1) / kTile;
  torch::stable::parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(groups * kTile * kOrderedLanes);
    const auto multiply = [&](const Range& range, int64_t first, int64_t last) {
      const int64_t count = last - first;
      chosen_ordered_products()({lanes.data(), groups, size, from + first * weight.stride(0), count,
                                 weight.stride(0), weight.stride(1),
                                 offsets ? offsets + first : nullptr, range.steps, range.num_steps,
                                 range.zero, sums.data()});
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
  return result;
}

namespace {
bool has_ordered_products() { return chosen_ordered_products() != nullptr; }
}  // namespace

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("ordered_products", TORCH_BOX(&vllm_fork::ordered_products));
}

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CompositeExplicitAutograd, library) {
  library.impl("has_ordered_products", TORCH_BOX(&vllm_fork::has_ordered_products));
}
