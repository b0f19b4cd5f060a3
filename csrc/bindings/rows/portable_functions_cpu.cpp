// The CPU implementations of portable_map and portable_gated.
#include <torch/csrc/stable/library.h>

#include <string>

#include "bindings/portable_checks.h"
#include "bindings/portable_operators_cpu.h"
#include "bindings/rows/portable_rows.h"

namespace vllm_fork {
namespace {

// Numbers that stay in the first cache while a function passes over them.
constexpr int64_t kPiece = 1024;

Tensor portable_map(Tensor x, std::string function) {
  const Function chosen = function_named("portable_map", function);
  check_map(x);
  Tensor result = torch::stable::empty_like(x);
  const Numbers source(x);
  const Numbers target(result);
  const PortableOperations& operations = *chosen_isa().operations;
  const int64_t total = x.numel();
  for_each_row((total + kPiece - 1) / kPiece, kPiece, [&](int64_t i) {
    const int64_t count = std::min(kPiece, total - i * kPiece);
    float* piece = scratch_floats(kPiece);
    source.read(i * kPiece, piece, count);
    operations.apply(chosen, piece, count);
    target.write(i * kPiece, piece, count);
  });
  return result;
}

}  // namespace

// A piece of the first half of a row is activated, and multiplied with the same of the second.
void gate_into(const Tensor& x, Function function, const Tensor& result) {
  const int64_t half = x.size(-1) / 2;
  const Numbers source(x);
  const Numbers target(result);
  const PortableOperations& operations = *chosen_isa().operations;
  const int64_t pieces = (half + kPiece - 1) / kPiece;
  const int64_t rows = half == 0 ? 0 : result.numel() / half;
  for_each_row(rows * pieces, std::min(half, kPiece), [&](int64_t i) {
    const int64_t row = i / pieces;
    const int64_t first = i % pieces * kPiece;
    const int64_t count = std::min(kPiece, half - first);
    float* gate = scratch_floats(2 * kPiece);
    source.read(row * 2 * half + first, gate, count);
    source.read(row * 2 * half + half + first, gate + kPiece, count);
    operations.apply(function, gate, count);
    operations.multiply(gate, gate + kPiece, count);
    target.write(row * half + first, gate, count);
  });
}

namespace {

Tensor portable_gated(Tensor x, std::string function) {
  const Function chosen = function_named("portable_gated", function);
  check_gated(x);
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() /= 2;
  Tensor result = torch::stable::new_empty(x, shape);
  gate_into(x, chosen, result);
  return result;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_map", TORCH_BOX(&vllm_fork::portable_map));
  library.impl("portable_gated", TORCH_BOX(&vllm_fork::portable_gated));
}
