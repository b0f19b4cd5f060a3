// The CPU implementations of portable_rotate and of the ops that make its tables.
#include <torch/csrc/stable/library.h>

#include "bindings/portable_checks.h"
#include "bindings/portable_operators_cpu.h"
#include "bindings/rows/portable_rows.h"
#include "portable/rotary.h"

namespace vllm_fork {
namespace {

constexpr const char* kFrequencies = "portable_rotary_frequencies";
constexpr const char* kTable = "portable_rotary_table";
constexpr const char* kRotate = "portable_rotate";

Tensor portable_rotary_frequencies(int64_t size, double base) {
  check(size >= 2 && size % 2 == 0, kFrequencies, ": size must be even and at least 2, but is ",
        size, ".");
  check(base >= 1.0 && base <= 0x1p60, kFrequencies, ": base must be in 1..2^60, but is ", base,
        ".");
  Tensor result = torch::stable::empty({size / 2}, ScalarType::Float);
  auto* frequencies = result.mutable_data_ptr<float>();
  const DefaultFloatEnvironment environment;
  for (int64_t i = 0; i < size / 2; ++i) frequencies[i] = rotary_frequency(base, i, size);
  return result;
}

Tensor portable_rotary_table(Tensor frequencies, int64_t positions, double scale) {
  check_rotary_table(frequencies, positions);
  const int64_t half = frequencies.size(0);
  const auto* frequency = frequencies.const_data_ptr<float>();
  for (int64_t j = 0; j < half; ++j) {
    check(frequency[j] >= 0.0f &&
              frequency[j] * static_cast<double>(positions - 1) <= kLargestAngle,
          kTable, ": frequencies[", j,
          "] must not be negative, and its angles at most 2^21, but is ", frequency[j], ".");
  }
  Tensor result = torch::stable::new_empty(frequencies, {positions, 2 * half});
  auto* entries = result.mutable_data_ptr<float>();
  for_each_row(positions, 2 * half, [&](int64_t p) {
    float* row = entries + p * 2 * half;
    for (int64_t j = 0; j < half; ++j) {
      rotary_entry(p, frequency[j], scale, row + j, row + half + j);
    }
  });
  return result;
}

// Every position must be in the table.
void check_positions(const Tensor& x, const Tensor& positions, const Tensor& table) {
  const auto* position = positions.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < x.size(0); ++i) {
    check(0 <= position[i] && position[i] < table.size(0), kRotate, ": positions[", i, "] is ",
          position[i], ", but table has ", table.size(0), " rows.");
  }
}

}  // namespace

void portable_rotate(Tensor x, Tensor positions, Tensor table, bool is_interleaved) {
  check_rotate(x, positions, table);
  check_positions(x, positions, table);
  const Numbers numbers(x);
  const auto* position = positions.const_data_ptr<int64_t>();
  const auto* entries = table.const_data_ptr<float>();
  const int64_t size = table.size(1);
  const int64_t heads = x.size(1);
  for_each_row(x.size(0), heads * size, [&](int64_t i) {
    float* head = scratch_floats(size);
    const float* cosines = entries + position[i] * size;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t start = i * x.stride(0) + h * x.stride(1);
      numbers.read(start, head, size);
      chosen_isa().operations->rotate(head, cosines, cosines + size / 2, size / 2, is_interleaved);
      numbers.write(start, head, size);
    }
  });
}

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_rotary_table", TORCH_BOX(&vllm_fork::portable_rotary_table));
  library.impl("portable_rotate", TORCH_BOX(&vllm_fork::portable_rotate));
}

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CompositeExplicitAutograd, library) {
  library.impl("portable_rotary_frequencies", TORCH_BOX(&vllm_fork::portable_rotary_frequencies));
}
