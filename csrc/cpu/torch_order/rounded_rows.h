// Rows of what Hugging Face's layers do around products: PyTorch's formulas, which round after every
// operation.
#pragma once

#include <cstdint>
#include <cstring>

#include "portable/number_types.h"

// Compiled for several instruction sets, of which the machine's is taken; none of them fuses products
// with sums (-ffp-contract=off), so all give the same bits.
#define VLLM_FORK_WITH_VECTORS \
  __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))

namespace vllm_fork {
namespace {  // GCC makes no clones of templates that files share

struct Rotation {
  int64_t head_size;
  int64_t half;  // of what is rotated of a head
  bool is_neox;  // halves of a head belong together, else neighbours
};

// One head. `angles` has the cosines, and behind them the sines.
template <typename Number>
VLLM_FORK_WITH_VECTORS void rotate(const Number* head, const Number* angles, const Rotation& by, Number* out) {
  const auto product = [](Number a, Number b) {
    return widen(narrow<Number>(widen(a) * widen(b)));
  };
  const int64_t half = by.half;
  const int64_t step = by.is_neox ? 1 : 2;
  const int64_t apart = by.is_neox ? half : 1;
  for (int64_t i = 0; i < half; ++i) {
    const Number x = head[i * step], y = head[i * step + apart];
    const Number cosine = angles[i], sine = angles[half + i];
    out[i * step] = narrow<Number>(product(x, cosine) - product(y, sine));
    out[i * step + apart] = narrow<Number>(product(y, cosine) + product(x, sine));
  }
  const int64_t rotated = 2 * by.half;
  std::memcpy(out + rotated, head + rotated, (by.head_size - rotated) * sizeof(Number));
}

template <typename Number>
VLLM_FORK_WITH_VECTORS void add(const Number* a, const Number* b, int64_t count, Number* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = narrow<Number>(widen(a[i]) + widen(b[i]));
}

template <typename Number>
VLLM_FORK_WITH_VECTORS void square(const Number* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = widen(x[i]) * widen(x[i]);
}

template <typename Number>
VLLM_FORK_WITH_VECTORS void scale(const Number* x, const Number* weight, int64_t count,
                                  float factor, Number* out) {
  for (int64_t i = 0; i < count; ++i) {
    const Number normed = narrow<Number>(widen(x[i]) * factor);
    out[i] = narrow<Number>(widen(weight[i]) * widen(normed));
  }
}

template <typename Number>
VLLM_FORK_WITH_VECTORS void multiply(const Number* a, const Number* b, int64_t count,
                                     Number* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = narrow<Number>(widen(a[i]) * widen(b[i]));
}

}  // namespace
}  // namespace vllm_fork

#undef VLLM_FORK_WITH_VECTORS
