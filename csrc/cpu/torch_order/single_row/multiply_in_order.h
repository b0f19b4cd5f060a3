// Rows times a weight in float32, in orders of addition that Python has found out, on the threads that
// they are worth.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/torch_order/single_row/ordered_products.h"

namespace vllm_fork {

// Outputs that are added in one order.
struct SumRange {
  int64_t end;
  float zero;
  const SumStep* steps;
  int64_t num_steps;
};

// The operands of a product.
struct OrderedOperands {
  const float* x;  // [rows, size]
  int64_t rows, size;
  const float* weight;  // [outputs, size], with any strides
  int64_t outputs, weight_row, weight_column;
  const float* bias;  // [outputs], or null
};

// Writes [rows, outputs]; the ranges are of all outputs, one behind the other.
void multiply_in_order(const OrderedOperands& operands, const std::vector<SumRange>& ranges,
                       float* target);

}  // namespace vllm_fork
