// The matrices of a product in memory, as CPU and GPU are given them.
#pragma once

#include <cstdint>

#include "portable/number_formats.h"

namespace vllm_fork {

// Rows of activations, [rows, inputs] of a format, `stride` numbers apart.
struct ProductRows {
  const void* data;
  int64_t stride;
  int64_t rows;
  Format format;
  const int8_t* equalised;  // [inputs], the exponents of the channels; null if all are 0
};

// A weight, [outputs, inputs] of a format, contiguous.
struct WeightNumbers {
  const void* data;
  Format format;
};

}  // namespace vllm_fork
