// Tensor cores' products of 8-bit integers and of bfloat16, as every GPU from sm_80 on has them.
#pragma once

#include <cstdint>

#include "cuda/primitives/device.cuh"

#if defined(VLLM_FORK_EMULATE_CUDA)
#include "emulation/bfloat16_on_host.h"
#include "emulation/dot_on_host.h"
#endif

namespace vllm_fork {

// sums += a * b for a [16, k] and b [k, 8], all lanes of a warp together: where some may have gone
// another way before, __syncwarp() is needed. A word is 4 bytes with k = 32, which is exact, or 2
// bfloat16 with k = 16. With g = lane / 4 and q = lane % 4, and n numbers to a word, a lane has
//
//   a[0] of row g and columns n * q.., a[1] of row g + 8; a[2], a[3] the same, k / 2 columns on
//   b[0] of rows n * q.. and column g; b[1] the same, k / 2 rows on
//   sums[0], sums[1] of row g and columns 2 * q, 2 * q + 1; sums[2], sums[3] of row g + 8
//
// Sums of bfloat16 products are float32. In which order they are added is not specified, nor how
// they are rounded: only that there are at least float32's 24 bits (PTX ISA, "mma"). NVIDIA's
// processors align numbers to the largest and cut off what is below its bits. That is nothing if
// all of them are integers, and the sum of any of them, of what was there before too, is below 2^24
// in magnitude.
struct Fragments {
  uint32_t a[4];
  uint32_t b[2];
};

#if defined(VLLM_FORK_EMULATE_CUDA)

inline void multiply_add(int32_t (&sums)[4], const Fragments& own) {
  const Fragments* lanes = emulation::exchange(own);
  const int row = emulation::lane() / 4;
  const int column = emulation::lane() % 4 * 2;
  int8_t left[2][emulation::kStepBytes];
  int8_t right[2][emulation::kStepBytes];
  for (int q = 0; q < 4; ++q) {
    for (int r = 0; r < 2; ++r) {
      for (int half = 0; half < 2; ++half) {
        std::memcpy(&left[r][16 * half + 4 * q], &lanes[row * 4 + q].a[r + 2 * half], 4);
        std::memcpy(&right[r][16 * half + 4 * q], &lanes[(column + r) * 4 + q].b[half], 4);
      }
    }
  }
  for (int i = 0; i < 4; ++i) sums[i] += emulation::dot_of_step(left[i / 2], right[i % 2]);
}

inline void multiply_add(float (&sums)[4], const Fragments& own) {
  constexpr int kProducts = 16;
  const Fragments* lanes = emulation::exchange(own);
  const int row = emulation::lane() / 4;
  const int column = emulation::lane() % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    float addends[kProducts + 1];
    for (int k = 0; k < kProducts; ++k) {
      const Fragments& left = lanes[row * 4 + k % 8 / 2];
      const Fragments& right = lanes[(column + i % 2) * 4 + k % 8 / 2];
      addends[k] = emulation::bfloat16_of(left.a[i / 2 + k / 8 * 2], k % 2) *
                   emulation::bfloat16_of(right.b[k / 8], k % 2);
    }
    addends[kProducts] = sums[i];
    sums[i] = emulation::truncated_sum(addends);
  }
}

#else

// volatile: all lanes of a warp make a product together, so the compiler may not move it to where only
// some of them need the sums.
__device__ __forceinline__ void multiply_add(int32_t (&sums)[4], const Fragments& own) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(own.a[0]), "r"(own.a[1]), "r"(own.a[2]), "r"(own.a[3]), "r"(own.b[0]), "r"(own.b[1]));
}

__device__ __forceinline__ void multiply_add(float (&sums)[4], const Fragments& own) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(own.a[0]), "r"(own.a[1]), "r"(own.a[2]), "r"(own.a[3]), "r"(own.b[0]), "r"(own.b[1]));
}

#endif

}  // namespace vllm_fork
