// Where a kernel puts the digits of rows, for the product that multiplies them.
#pragma once

#include <cstdint>

#include "portable/product_layout.h"

namespace vllm_fork {

// Places in the workspace of a product with a weight of this shape.
struct DigitTarget {
  ProductShape shape;
  int64_t rows;
  const int8_t* equalised;  // [inputs], the exponents of the channels; null if all are 0
  uint8_t* tiles;           // as digit_tiles.cuh lays them out
  int32_t* counters;        // become 0
  int64_t num_counters;
};

}  // namespace vllm_fork
