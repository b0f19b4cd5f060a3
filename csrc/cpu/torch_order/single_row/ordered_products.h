// Products of rows with a float32 weight, added in an order that is given.
#pragma once

#include <cstdint>

namespace vllm_fork {

// A library of matrix products adds a single row's products in an order that depends on the CPU, on
// the shape, and on where the weight lies in memory. Whatever it is, it consists of runs of products
// that are added one after the other, and of sums that are added to others:
//
//   count > 0   products first, first + stride, ... are added to sum `sum`; if they are fused, a
//               product is not rounded before it is added
//   count == 0  sum `first` is added to sum `sum`, and is 0 again
//   count < 0   the bias is added to sum `sum`
//
// All sums are 0 before the first step; the result is sum 0. A library that begins a sum with its
// first product begins with -0, as it were, to which any number adds up to itself.
struct SumStep {
  int32_t sum, first, stride, count, is_fused;
};
constexpr int64_t kMostSums = 32;

constexpr int64_t kOrderedLanes = 16;   // rows
constexpr int64_t kOrderedGroups = 2;   // of them that share what is read of the weight
constexpr int64_t kOrderedOutputs = 8;  // at a time

//   x         [groups, size, 16], zeros in lanes that have no row
//   weight    product k of output n is with weight[n * output_stride + k * input_stride]
//   bias      [outputs], or null if no step adds it
//   out       [groups, outputs, 16]
struct OrderedProducts {
  const float* x;
  int64_t groups, size;
  const float* weight;
  int64_t outputs, output_stride, input_stride;
  const float* bias;
  const SumStep* steps;
  int64_t num_steps;
  float zero;
  float* out;
};

#if defined(VLLM_FORK_X86)
// Compiled with its own instruction set: call it only after asking the CPU (see isa.h).
void ordered_products_avx512(const OrderedProducts&);
#endif

}  // namespace vllm_fork
