// The product of 8-bit integers that four warps make together for a weight and many rows.
#pragma once

#include "cuda/primitives/warpgroup.cuh"
#include "cuda/product/digit_tiles.cuh"

namespace vllm_fork {

inline constexpr int kWarpgroupTiles = 12;  // tiles of 8 rows that are multiplied at once

// Says where digits of rows lie in shared memory: those of the next tile `tile_bytes` behind.
__device__ __forceinline__ uint64_t row_matrices_at(const void* shared, int tile_bytes) {
  return matrices(sixteens_of(shared), kRowsOfTile * kHalf, tile_bytes);
}

// sums += a * b for a [64, 32], of which each warp has 16 rows as for multiply_add, and the rows of
// 12 tiles of digits. A lane's sums are those of 12 calls of multiply_add.
#if defined(VLLM_FORK_EMULATE_CUDA)

inline void multiply_add(int32_t (&sums)[kWarpgroupTiles][4], const uint32_t (&a)[4],
                         uint64_t rows, const Place& place = Place::current()) {
  emulation::ask_for_product(sums, emulation::left_words(a, true, place), rows, true);
}

#else

__device__ __forceinline__ void multiply_add(int32_t (&sums)[kWarpgroupTiles][4],
                                             const uint32_t (&a)[4], uint64_t rows) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.eq.u32 adds, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "{%48, %49, %50, %51}, %52, adds;\n"
      "}"
      : "+r"(sums[0][0]), "+r"(sums[0][1]), "+r"(sums[0][2]),
        "+r"(sums[0][3]), "+r"(sums[1][0]), "+r"(sums[1][1]),
        "+r"(sums[1][2]), "+r"(sums[1][3]), "+r"(sums[2][0]),
        "+r"(sums[2][1]), "+r"(sums[2][2]), "+r"(sums[2][3]),
        "+r"(sums[3][0]), "+r"(sums[3][1]), "+r"(sums[3][2]),
        "+r"(sums[3][3]), "+r"(sums[4][0]), "+r"(sums[4][1]),
        "+r"(sums[4][2]), "+r"(sums[4][3]), "+r"(sums[5][0]),
        "+r"(sums[5][1]), "+r"(sums[5][2]), "+r"(sums[5][3]),
        "+r"(sums[6][0]), "+r"(sums[6][1]), "+r"(sums[6][2]),
        "+r"(sums[6][3]), "+r"(sums[7][0]), "+r"(sums[7][1]),
        "+r"(sums[7][2]), "+r"(sums[7][3]), "+r"(sums[8][0]),
        "+r"(sums[8][1]), "+r"(sums[8][2]), "+r"(sums[8][3]),
        "+r"(sums[9][0]), "+r"(sums[9][1]), "+r"(sums[9][2]),
        "+r"(sums[9][3]), "+r"(sums[10][0]), "+r"(sums[10][1]),
        "+r"(sums[10][2]), "+r"(sums[10][3]), "+r"(sums[11][0]),
        "+r"(sums[11][1]), "+r"(sums[11][2]), "+r"(sums[11][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}

#endif

}  // namespace vllm_fork
