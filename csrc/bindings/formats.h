// The formats of numbers that deterministic mode knows, as torch's dtypes.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "bindings/argument_checks.h"
#include "portable/number_formats.h"

namespace vllm_fork {

inline bool is_portable_type(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Half;
}

inline Format format_of(const Tensor& tensor) {
  if (tensor.scalar_type() == ScalarType::Float) return Format::kFloat32;
  return tensor.scalar_type() == ScalarType::BFloat16 ? Format::kBfloat16 : Format::kFloat16;
}

inline void check_portable_type(const char* op, const char* name, const Tensor& tensor) {
  check(is_portable_type(tensor.scalar_type()), op, ": ", name,
        " must have dtype float32, bfloat16 or float16, but has ", dtype_name(tensor.scalar_type()),
        ".");
}

}  // namespace vllm_fork
