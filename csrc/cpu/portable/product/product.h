// The portable linear-layer product on CPU: docs/numerics/products.md, for one instruction set.
#pragma once

#include <cstdint>

#include "portable/number_types.h"
#include "portable/product_arguments.h"
#include "portable/product_layout.h"

namespace vllm_fork {

// Where sums go, [rows, outputs] of a format, one after the other.
struct ProductOutput {
  void* data;
  Format format;
  const float* bias;  // [outputs]; null for none
};

struct ProductKernel {
  // Bytes that the digits of some rows take.
  int64_t (*digits_bytes)(const ProductShape& shape, int64_t rows);

  // Writes the digits of rows [first, last) to their places among those of all rows.
  void (*split_rows)(const ProductShape& shape, const ProductRows& x, int64_t first, int64_t last,
                     uint8_t* digits);

  // The tiles of outputs and rows that threads share out.
  int64_t (*num_tiles)(const ProductShape& shape, int64_t rows);

  // Multiplies and writes the tiles [first, last). `packed` and `digits` are aligned to 64 bytes.
  void (*multiply)(const ProductShape& shape, const uint8_t* packed, const uint8_t* digits,
                   int64_t rows, int64_t first, int64_t last, const ProductOutput& output);
};

// The kernel that suits a number of rows. The choice changes no bit.
using ChooseProductKernel = const ProductKernel& (*)(int64_t rows);

const ProductKernel& product_kernel_scalar(int64_t rows);

#if defined(VLLM_FORK_X86)
// Compiled with their own instruction sets: call them only after asking the CPU (see isa.h).
const ProductKernel& product_kernel_avx2(int64_t rows);
const ProductKernel& product_kernel_avx512(int64_t rows);
const ProductKernel& product_kernel_avx512vnni(int64_t rows);
const ProductKernel& product_kernel_amx(int64_t rows);
#endif

}  // namespace vllm_fork
