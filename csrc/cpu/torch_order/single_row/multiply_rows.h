// Rows times a weight, each row with the bits that it has alone, on the threads that they are worth.
#pragma once

#include <cstdint>

#include "portable/number_formats.h"

namespace vllm_fork {

// The operands of a product, as the bits of bfloat16 or float16.
struct RowOperands {
  const uint16_t* x;       // [rows, size]
  const uint16_t* weight;  // [outputs, size]
  const uint16_t* bias;    // [outputs], or null
  int64_t rows, outputs, size;
  Format format;
};

// Writes [rows, outputs], in the order of row_products.h, or of row_chains.h with blocks of so many
// columns.
void multiply_rows(const RowOperands& operands, int64_t block, uint16_t* target);

// The same for a weight [size, outputs] in bfloat16, without a bias.
void multiply_transposed(const RowOperands& operands, int64_t block, uint16_t* target);

}  // namespace vllm_fork
