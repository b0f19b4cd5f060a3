// What the checks of all ops are made of: each failure is one sentence.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <ostream>

namespace vllm_fork {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A std::runtime_error becomes Python's RuntimeError. STD_TORCH_CHECK would do the same, but puts
// the source file's path and line before the sentence.
template <typename... Parts>
void check(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::runtime_error(sentence.str());
}

// The name that Python gives to a dtype, for those that a caller may plausibly pass. It is made
// where it is said: a step checks dtypes dozens of times.
struct DtypeName {
  ScalarType type;
};

inline std::ostream& operator<<(std::ostream& out, const DtypeName& name) {
  switch (name.type) {
    case ScalarType::Float: return out << "float32";
    case ScalarType::Double: return out << "float64";
    case ScalarType::Half: return out << "float16";
    case ScalarType::BFloat16: return out << "bfloat16";
    case ScalarType::Int: return out << "int32";
    case ScalarType::Long: return out << "int64";
    case ScalarType::Char: return out << "int8";
    case ScalarType::Byte: return out << "uint8";
    case ScalarType::Bool: return out << "bool";
    default: return out << "torch's " << toString(name.type);
  }
}

inline DtypeName dtype_name(ScalarType type) { return {type}; }

inline void check_dtype(const char* op, const char* name, const Tensor& tensor,
                        ScalarType expected) {
  check(tensor.scalar_type() == expected, op, ": ", name, " must have dtype ",
        dtype_name(expected), ", but has ", dtype_name(tensor.scalar_type()), ".");
}

inline void check_16_bits(const char* op, const char* name, const Tensor& tensor) {
  const ScalarType type = tensor.scalar_type();
  check(type == ScalarType::BFloat16 || type == ScalarType::Half, op, ": ", name,
        " must have dtype bfloat16 or float16, but has ", dtype_name(type), ".");
}

inline void check_dim(const char* op, const char* name, const Tensor& tensor, int64_t dim) {
  check(tensor.dim() == dim, op, ": ", name, " must have ", dim, " dimension(s), but has ",
        tensor.dim(), ".");
}

inline void check_contiguous(const char* op, const char* name, const Tensor& tensor) {
  check(tensor.is_contiguous(), op, ": ", name, " must be contiguous.");
}

inline void check_length(const char* op, const char* name, const Tensor& tensor, int64_t length,
                         const char* reference) {
  check(tensor.size(0) == length, op, ": ", name, " must have one entry for each of the ", length,
        " ", reference, ", but has ", tensor.size(0), ".");
}

// A vector with an entry for each of `length` things.
inline void check_entries(const char* op, const char* name, const Tensor& tensor, ScalarType type,
                          int64_t length, const char* things) {
  check_dtype(op, name, tensor, type);
  check_dim(op, name, tensor, 1);
  check_contiguous(op, name, tensor);
  check_length(op, name, tensor, length, things);
}

inline void check_matrix(const char* op, const char* name, const Tensor& tensor, ScalarType type) {
  check_dtype(op, name, tensor, type);
  check_dim(op, name, tensor, 2);
  check_contiguous(op, name, tensor);
}

}  // namespace vllm_fork
