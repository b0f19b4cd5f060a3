// What CUDA ops that make digits of rows share with those that multiply them.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

#include "bindings/argument_checks.h"
#include "cuda/product/digit_target.h"

namespace vllm_fork {

// The memory that the product of some rows takes, and where in it their digits go.
struct RowDigits {
  Tensor memory;
  DigitTarget target;
};

// For `rows` rows on the device of x that a weight of this shape will be multiplied with.
RowDigits new_digits(const char* op, const Tensor& x, int64_t rows,
                     const std::optional<Tensor>& exponents, const ProductShape& shape);

}  // namespace vllm_fork
