// The CPU implementation of draw_tokens.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "bindings/checks.h"
#include "cpu/isa.h"
#include "portable/mt19937.h"

namespace vllm_fork {
namespace {

// A thread is worth waking for about this many numbers.
constexpr int64_t kNumbersPerTask = 32 * 1024;

// The rows that draw, those of one state together and in the order of their numbers.
std::vector<int64_t> drawing_order(const int32_t* slot, const int64_t* offset, int64_t rows) {
  std::vector<int64_t> order;
  order.reserve(rows);
  for (int64_t i = 0; i < rows; ++i) {
    if (slot[i] >= 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::pair(slot[a], offset[a]) < std::pair(slot[b], offset[b]);
  });
  return order;
}

// Where each state's rows begin in the order, and the order's end.
std::vector<int64_t> bounds_of_states(const std::vector<int64_t>& order, const int32_t* slot) {
  std::vector<int64_t> bounds;
  const auto count = static_cast<int64_t>(order.size());
  for (int64_t k = 0; k < count; ++k) {
    if (k == 0 || slot[order[k]] != slot[order[k - 1]]) bounds.push_back(k);
  }
  bounds.push_back(count);
  return bounds;
}

// Every entry is checked before a state is changed.
void check_values(const std::vector<int64_t>& order, const Tensor& states, const int32_t* slot,
                  const int64_t* offset, int64_t vocab) {
  const auto* words = states.const_data_ptr<int32_t>();
  for (size_t k = 0; k < order.size(); ++k) {
    const int64_t row = order[k];
    const bool is_first = k == 0 || slot[row] != slot[order[k - 1]];
    check_state_slot(row, slot[row], states.size(0));
    check_offset(row, offset[row], is_first ? 0 : offset[order[k - 1]] + vocab);
    if (is_first) check_position(slot[row], words[slot[row] * kMtStateWords + kMtPosition]);
  }
}

Tensor draw_tokens(Tensor probs, Tensor states, Tensor slots, Tensor offsets) {
  check_draw_tokens(probs, states, slots, offsets);
  const int64_t rows = probs.size(0);
  const int64_t vocab = probs.size(1);
  const auto* slot = slots.const_data_ptr<int32_t>();
  const auto* offset = offsets.const_data_ptr<int64_t>();
  const std::vector<int64_t> order = drawing_order(slot, offset, rows);
  check_values(order, states, slot, offset, vocab);

  Tensor tokens = torch::stable::new_empty(probs, {rows}, torch::headeronly::ScalarType::Long);
  auto* token = tokens.mutable_data_ptr<int64_t>();
  std::fill(token, token + rows, -1);

  const Isa& isa = chosen_isa();
  const auto* prob = probs.const_data_ptr<float>();
  const int64_t stride = probs.stride(0);
  auto* words = reinterpret_cast<uint32_t*>(states.mutable_data_ptr<int32_t>());
  const std::vector<int64_t> bounds = bounds_of_states(order, slot);
  const int64_t grain = std::max<int64_t>(1, kNumbersPerTask / std::max<int64_t>(1, vocab));
  // Rows that share a state depend on each other, so a state is the work of one thread.
  const auto num_states = static_cast<int64_t>(bounds.size()) - 1;
  torch::stable::parallel_for(0, num_states, grain, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      int64_t position = 0;  // of the state, counted from where it was
      for (int64_t k = bounds[s]; k < bounds[s + 1]; ++k) {
        const int64_t row = order[k];
        uint32_t* state = words + slot[row] * kMtStateWords;
        isa.skip_numbers(state, offset[row] - position);
        token[row] = isa.draw_row(state, prob + row * stride, vocab);
        position = offset[row] + vocab;
      }
    }
  });
  return tokens;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("draw_tokens", TORCH_BOX(&vllm_fork::draw_tokens));
}
