// Orders of sums as Python gives them: see SumOrder in vllm/fork_kernels/torch_order/ordered_products.py.
#pragma once

#include <cstdint>
#include <vector>

#include "bindings/argument_checks.h"
#include "cpu/torch_order/single_row/multiply_in_order.h"

namespace vllm_fork {

inline void check_step(const char* op, const SumStep& step, int64_t index, int64_t size,
                       bool has_bias) {
  const auto is_sum = [](int32_t sum) { return 0 <= sum && sum < kMostSums; };
  const int64_t last = step.first + (step.count - 1) * static_cast<int64_t>(step.stride);
  const bool is_right = step.count > 0    ? step.first >= 0 && step.stride > 0 && last < size
                        : step.count == 0 ? is_sum(step.first)
                                          : has_bias;
  check(is_sum(step.sum) && is_right, op, ": row ", index, " of order is no step: ", step.sum, ", ",
        step.first, ", ", step.stride, ", ", step.count, ", ", step.is_fused, ".");
}

// The rows of an order, which are read one behind the other. A row is a step, or the head of a range:
// (-1, its end, whether sums begin with -0, number of steps behind it, 0).
class OrderRows {
 public:
  OrderRows(const char* op, const Tensor& order) : op_(op), count_(order.size(0)) {
    check_dtype(op, "order", order, ScalarType::Int);
    check_dim(op, "order", order, 2);
    check_contiguous(op, "order", order);
    check(order.size(1) == 5, op, ": order must have 5 columns, but has ", order.size(1), ".");
    rows_ = static_cast<const SumStep*>(order.data_ptr());
  }

  bool is_at_end() const { return next_ == count_; }

  // The next range, of outputs whose products are `size`.
  SumRange range(int64_t size, bool has_bias) {
    check(next_ < count_, op_, ": order ends before that of all outputs.");
    const SumStep& head = rows_[next_];
    check(head.sum == -1 && head.first > 0 && head.count >= 0 && next_ + head.count < count_, op_,
          ": row ", next_, " of order begins no range of outputs.");
    const SumStep* steps = rows_ + next_ + 1;
    for (int32_t i = 0; i < head.count; ++i) check_step(op_, steps[i], next_ + 1 + i, size, has_bias);
    next_ += 1 + head.count;
    return {head.first, head.stride & 1 ? -0.0f : 0.0f, steps, head.count};
  }

  // Those of a number of outputs.
  std::vector<SumRange> ranges(int64_t outputs, int64_t size, bool has_bias) {
    std::vector<SumRange> found;
    for (int64_t end = 0; end < outputs; end = found.back().end) {
      const int64_t row = next_;
      found.push_back(range(size, has_bias));
      check(end < found.back().end && found.back().end <= outputs, op_, ": row ", row,
            " of order ends at ", found.back().end, ", but ", outputs, " outputs are meant.");
    }
    return found;
  }

  // Of the head of the next range.
  int32_t flags() const { return next_ < count_ ? rows_[next_].stride : 0; }

 private:
  const char* op_;
  const SumStep* rows_;
  int64_t count_, next_ = 0;
};

}  // namespace vllm_fork
