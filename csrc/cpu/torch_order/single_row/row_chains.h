// Products of rows with a bfloat16 weight, in the order of oneDNN's product of a vector.
#pragma once

#include <cstdint>

namespace vllm_fork {

// Where the CPU has instructions for bfloat16, PyTorch leaves the product of a single row to oneDNN,
// whose kernel (brgemm with vdpbf16ps) adds the columns of a block one pair after the other, the
// second of a pair first, and then the sums of blocks. Found out by products of 1, 2^60 and -2^60.
// This is that order for any number of rows: a lane belongs to a row.
constexpr int64_t kChainLanes = 16;
constexpr int64_t kChainTile = 12;  // calls with a multiple of so many outputs waste nothing

// The pairs of columns of up to 16 rows at a time: [groups, size / 2, 16], the bits of two bfloat16
// numbers in each, zeros in lanes that have no row.
//
//   weight   [outputs, size], the bits of bfloat16
//   size     even
//   block    columns of a block, even
//   out      [groups, outputs, 16], not rounded
using RowChains = void (*)(const uint32_t* pairs, int64_t groups, const uint16_t* weight,
                           int64_t outputs, int64_t size, int64_t block, float* out);

// The same with a lane for each output, which is faster for few rows.
//
//   x        [rows, size], the bits of bfloat16
//   outputs  kFewRowOutputs at least
//   size     a multiple of kFewRowColumns, as `block` is
//   sums     [rows, outputs], not rounded
constexpr int64_t kMostFewRows = 8;
constexpr int64_t kFewRowColumns = 8;
constexpr int64_t kFewRowOutputs = 16;
using FewRowChains = void (*)(const uint16_t* x, int64_t rows, const uint16_t* weight,
                              int64_t outputs, int64_t size, int64_t block, float* sums);

// The same for a weight whose outputs lie next to each other, as the experts of gpt-oss have it.
struct TransposedOperands {
  const uint16_t* x;     // [rows, size], the bits of bfloat16
  int64_t rows, size;    // size is even
  int64_t stride;        // between rows of the weight
};

// A tile of outputs; of 32 next to each other, the sums of 0..3 of each eight come first.
//
//   weight   [size, outputs] of a tile, in rows that are `stride` apart
//   outputs  up to kTransposedTile
//   block    columns of a block, even
//   chains   [rows, kTransposedTile], for what is added up
//   sums     likewise, not rounded
constexpr int64_t kTransposedLanes = 32;
constexpr int64_t kTransposedTile = 256;
constexpr int64_t transposed_place(int64_t output) {
  return output / kTransposedLanes * kTransposedLanes +  // 0..3 of each eight, then 4..7
         (output & 4) * 4 + output % kTransposedLanes / 8 * 4 + output % 4;
}
using TransposedChains = void (*)(const TransposedOperands& operands, const uint16_t* weight,
                                  int64_t outputs, int64_t block, float* chains, float* sums);

#if defined(VLLM_FORK_X86)
// Compiled with its own instruction set: call it only after asking the CPU (see isa.h).
void row_chains_avx512bf16(const uint32_t*, int64_t, const uint16_t*, int64_t, int64_t, int64_t,
                           float*);
void few_row_chains_avx512bf16(const uint16_t*, int64_t, const uint16_t*, int64_t, int64_t,
                               int64_t, float*);
void transposed_chains_avx512bf16(const TransposedOperands&, const uint16_t*, int64_t, int64_t,
                                  float*, float*);
#endif

}  // namespace vllm_fork
