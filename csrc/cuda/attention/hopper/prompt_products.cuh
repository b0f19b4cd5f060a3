// Products of digits that a warpgroup makes of 64 rows and 64 columns, for prompt_attention.cuh.
#pragma once

#include "cuda/primitives/registers.cuh"
#include "cuda/primitives/hopper/warpgroup.cuh"
#include "portable/attention.h"

namespace vllm_fork {

constexpr int kColumnTiles = 8;  // of 8 columns

// A lane's sums: [j][0], [j][1] of row g and columns 8 * j + 2 * q, + 1, with g = lane / 4 and
// q = lane % 4; [j][2], [j][3] of row g + 8 of the warp's 16.
using TileSums = int32_t[kColumnTiles][4];
using TileProducts = float[kColumnTiles][4];

}  // namespace vllm_fork

#if defined(VLLM_FORK_EMULATE_CUDA)

namespace vllm_fork {

template <bool kAdds>
void multiply_shared(TileSums& sums, uint64_t left, uint64_t right,
                     const Place& place = Place::current()) {
  emulation::exchange(0, place);
  emulation::ask_for_product(sums, emulation::LeftMatrices(left), right, kAdds);
}

template <bool kAdds, bool kIsSigned>
void multiply_words(TileSums& sums, const uint32_t (&left)[4], uint64_t right,
                    const Place& place = Place::current()) {
  emulation::ask_for_product(sums, emulation::left_words(left, kIsSigned, place), right, kAdds);
}

}  // namespace vllm_fork

#else

// The lane's 32 sums as operands 0 to 31.
#define VLLM_FORK_FOUR_SUMS(j) \
  "+r"(sums[j][0]), "+r"(sums[j][1]), "+r"(sums[j][2]), "+r"(sums[j][3])
#define VLLM_FORK_SUMS                                                                         \
  VLLM_FORK_FOUR_SUMS(0), VLLM_FORK_FOUR_SUMS(1), VLLM_FORK_FOUR_SUMS(2),                      \
      VLLM_FORK_FOUR_SUMS(3), VLLM_FORK_FOUR_SUMS(4), VLLM_FORK_FOUR_SUMS(5),                  \
      VLLM_FORK_FOUR_SUMS(6), VLLM_FORK_FOUR_SUMS(7)
#define VLLM_FORK_WGMMA(adds, left_type, operands)                                             \
  "{\n"                                                                                        \
  ".reg .pred adds;\n"                                                                         \
  "setp.ne.u32 adds, " adds ", 0;\n"                                                           \
  "wgmma.mma_async.sync.aligned.m64n64k32.s32." left_type ".s8 {"                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " operands \
  ", adds;\n"                                                                                  \
  "}"

namespace vllm_fork {

// sums (+)= left * right: left of 64 rows, each warp has 16 of them, and 32 columns; right of 64
// rows, which are the columns of the sums. With !kAdds there is nothing before.
template <bool kAdds>
__device__ __forceinline__ void multiply_shared(TileSums& sums, uint64_t left, uint64_t right) {
  asm volatile(VLLM_FORK_WGMMA("%34", "s8", "%32, %33")
               : VLLM_FORK_SUMS
               : "l"(left), "l"(right), "n"(kAdds ? 1 : 0));
}

// The left operand in registers, as for multiply_add of primitives/matrix_instructions.cuh.
template <bool kAdds, bool kIsSigned>
__device__ __forceinline__ void multiply_words(TileSums& sums, const uint32_t (&left)[4],
                                               uint64_t right) {
  if constexpr (kIsSigned) {
    asm volatile(VLLM_FORK_WGMMA("%37", "s8", "{%32, %33, %34, %35}, %36")
                 : VLLM_FORK_SUMS
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),
                   "n"(kAdds ? 1 : 0));
  } else {
    asm volatile(VLLM_FORK_WGMMA("%37", "u8", "{%32, %33, %34, %35}, %36")
                 : VLLM_FORK_SUMS
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),
                   "n"(kAdds ? 1 : 0));
  }
}

}  // namespace vllm_fork

#undef VLLM_FORK_WGMMA
#undef VLLM_FORK_SUMS
#undef VLLM_FORK_FOUR_SUMS

#endif

namespace vllm_fork {

// What a product adds up: of the left operand a digit, 0 the upper one, and of the right one.
template <int kLeft_, int kRight_>
struct DigitPair {
  static constexpr int kLeft = kLeft_;
  static constexpr int kRight = kRight_;
  static constexpr bool kAdds = kLeft == 1;  // to 256 times the sums of the upper digits
};

__device__ __forceinline__ void hold_all(TileSums& sums) {
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) hold(sums[j][e]);
  }
}

// sums *= 256, after they were waited for.
__device__ __forceinline__ void raise(TileSums& sums) {
  hold_all(sums);
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[j][e] *= 256;
  }
  hold_all(sums);
}

// The products of docs/numerics/attention.md, P or Y: fma(fl(A), 256, fl(B)). multiply(sums, pair)
// asks for the product of a pair of digits.
template <typename Multiply>
__device__ __forceinline__ void multiply_digits(TileProducts& products, const Multiply& multiply) {
  TileSums upper;
  TileSums lower;
  begin_products();
  multiply(upper, DigitPair<0, 0>());
  commit_products();
  multiply(lower, DigitPair<0, 1>());
  commit_products();
  wait_for_products<1>();
  raise(upper);
  begin_products();
  multiply(upper, DigitPair<1, 0>());
  commit_products();
  wait_for_products<1>();
  raise(lower);
  begin_products();
  multiply(lower, DigitPair<1, 1>());
  commit_products();
  wait_for_products<1>();
  hold_all(upper);
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) products[j][e] = static_cast<float>(upper[j][e]);
  }
  wait_for_products<0>();
  hold_all(lower);
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      products[j][e] = fused(products[j][e], 256.0f, static_cast<float>(lower[j][e]));
    }
  }
}

}  // namespace vllm_fork
