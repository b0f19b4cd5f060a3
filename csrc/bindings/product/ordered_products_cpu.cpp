// The CPU implementation of ordered_products.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "bindings/cpu_operators.h"
#include "bindings/product/sum_order.h"
#include "cpu/team/team.h"
#include "cpu/isa.h"

namespace vllm_fork {
namespace {

constexpr const char* kOrdered = "ordered_products";

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
void by_range(const std::vector<SumRange>& ranges, int64_t first, int64_t last,
              const Function& function) {
  for (const SumRange& range : ranges) {
    const int64_t end = std::min(range.end, last);
    if (first < end) function(range, first, end);
    first = std::max(first, end);
  }
}

}  // namespace

Tensor ordered_products_into(const Into& into, const Tensor& x, const Tensor& weight,
                             const std::optional<Tensor>& bias, const Tensor& order) {
  check_ordered(x, weight, bias);
  const int64_t rows = x.size(0), outputs = weight.size(0), size = x.size(1);
  OrderRows order_rows(kOrdered, order);
  const std::vector<SumRange> ranges = order_rows.ranges(outputs, size, bias.has_value());
  check(order_rows.is_at_end(), kOrdered, ": order has more rows than those of ", outputs,
        " outputs.");
  const std::vector<float> lanes = by_lanes(x);
  const int64_t groups = (rows + kOrderedLanes - 1) / kOrderedLanes;
  Tensor result = into ? *into : torch::stable::new_empty(x, {rows, outputs});
  const auto* from = static_cast<const float*>(weight.data_ptr());
  const auto* offsets = bias ? static_cast<const float*>(bias->data_ptr()) : nullptr;
  auto* target = static_cast<float*>(result.data_ptr());
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

Tensor ordered_products(Tensor x, Tensor weight, std::optional<Tensor> bias, Tensor order) {
  return ordered_products_into(std::nullopt, x, weight, bias, order);
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
