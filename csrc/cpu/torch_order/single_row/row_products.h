// Products of rows with a weight in 16 bits, in the order of PyTorch's product of a vector.
#pragma once

#include <cstdint>

namespace vllm_fork {

// PyTorch multiplies a single row in 16 bits with a weight by another kernel than several rows, and
// adds in another order. This is that order (ATen, ReducedPrecisionFloatGemvFastPathKernel.cpp,
// bf16_gemv_trans and fp16_gemv_trans with vectors of 16), for any number of rows: element i belongs
// to sum i % 64, then 64 sums are folded into 32, 16, 8, 4, 2 and 1. What is left over of whole 64 has
// eight sums, as far as it is a multiple of 16, which are folded and added; the last ones are added
// one by one.
//
//   x        [rows, size], float
//   weight   [outputs, size], the bits of bfloat16 or float16
//   out      [rows, outputs], not rounded
using RowProducts = void (*)(const float* x, int64_t rows, const uint16_t* weight, bool is_float16,
                             int64_t outputs, int64_t size, float* out);

#if defined(VLLM_FORK_X86)
// Compiled with its own instruction set: call it only after asking the CPU (see isa.h).
void row_products_avx512(const float*, int64_t, const uint16_t*, bool, int64_t, int64_t, float*);
#endif

}  // namespace vllm_fork
