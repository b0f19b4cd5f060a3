// The CPU implementation of row_products.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "../cpu/isa.h"
#include "checks.h"

namespace vllm_fork {
namespace {

// Weights that stay in the second cache while all rows pass them.
constexpr int64_t kTileBytes = 128 * 1024;

float widen(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// To the nearest bfloat16, ties to even.
uint16_t narrow(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

Tensor row_products(Tensor x, Tensor weight, std::optional<Tensor> bias) {
  check_row_products(x, weight, bias, chosen_isa().row_products != nullptr);
  const int64_t rows = x.size(0);
  const int64_t size = x.size(1);
  const int64_t outputs = weight.size(0);
  Tensor result = torch::stable::new_empty(x, {rows, outputs});
  const auto* source = static_cast<const uint16_t*>(x.data_ptr());
  const auto* weights = static_cast<const uint16_t*>(weight.data_ptr());
  const auto* biases = bias ? static_cast<const uint16_t*>(bias->data_ptr()) : nullptr;
  auto* target = static_cast<uint16_t*>(result.data_ptr());

  std::vector<float> wide(rows * size);
  std::transform(source, source + rows * size, wide.begin(), widen);
  const int64_t tile = std::max<int64_t>(1, kTileBytes / std::max<int64_t>(1, 2 * size));
  const int64_t num_tiles = (outputs + tile - 1) / tile;
  torch::stable::parallel_for(0, num_tiles, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(rows * tile);
    for (int64_t first = begin * tile; first < std::min(outputs, end * tile); first += tile) {
      const int64_t count = std::min(tile, outputs - first);
      chosen_isa().row_products(wide.data(), rows, weights + first * size, count, size,
                                sums.data());
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t n = 0; n < count; ++n) {
          const float offset = biases ? widen(biases[first + n]) : 0.0f;
          target[m * outputs + first + n] = narrow(sums[m * count + n] + offset);
        }
      }
    }
  });
  return result;
}

bool has_row_products() { return chosen_isa().row_products != nullptr; }

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("row_products", TORCH_BOX(&vllm_fork::row_products));
}

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CompositeExplicitAutograd, library) {
  library.impl("has_row_products", TORCH_BOX(&vllm_fork::has_row_products));
}
