// The product of 8-bit integers that four warps make together of 64 outputs of a weight and many
// rows, both of which are in shared memory.
#pragma once

#include "cuda/primitives/hopper/warpgroup.cuh"
#include "cuda/product/digit_tiles.cuh"

namespace vllm_fork {

// Says where a digit of eights of outputs or rows lies in shared memory, one tile of
// digit_tiles.cuh behind the other.
__device__ __forceinline__ uint64_t digit_at(unsigned int sixteens, int digit) {
  const auto behind = static_cast<unsigned int>(digit * kRowTile / 2 / kMatrixBytes);
  return matrices(sixteens + behind, kMatrix, kRowTile);
}

}  // namespace vllm_fork

// sums (+)= weight * rows of a step: of 64 outputs each warp has 16; the rows of 8, 12 or 16 tiles. A
// lane's sums are those of as many calls of multiply_add of matrix_instructions.cuh. With !kAdds
// there is nothing before.
#if defined(VLLM_FORK_EMULATE_CUDA)

namespace vllm_fork {

template <bool kAdds, int kTiles>
void multiply_step(int32_t (&sums)[kTiles][4], uint64_t weight, uint64_t rows,
                   const Place& place = Place::current()) {
  emulation::exchange(0, place);
  emulation::ask_for_product(sums, emulation::LeftMatrices(weight), rows, kAdds);
}

}  // namespace vllm_fork

#else

#define VLLM_FORK_SUMS_OF(t) \
  "+r"(sums[t][0]), "+r"(sums[t][1]), "+r"(sums[t][2]), "+r"(sums[t][3])
#define VLLM_FORK_SUMS_OF_8                                                              \
  VLLM_FORK_SUMS_OF(0), VLLM_FORK_SUMS_OF(1), VLLM_FORK_SUMS_OF(2), VLLM_FORK_SUMS_OF(3), \
      VLLM_FORK_SUMS_OF(4), VLLM_FORK_SUMS_OF(5), VLLM_FORK_SUMS_OF(6), VLLM_FORK_SUMS_OF(7)
#define VLLM_FORK_SUMS_OF_12                                                          \
  VLLM_FORK_SUMS_OF_8, VLLM_FORK_SUMS_OF(8), VLLM_FORK_SUMS_OF(9), VLLM_FORK_SUMS_OF(10), \
      VLLM_FORK_SUMS_OF(11)
#define VLLM_FORK_NAMES_OF_8                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VLLM_FORK_NAMES_OF_12 \
  VLLM_FORK_NAMES_OF_8        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"

namespace vllm_fork {

template <bool kAdds>
__device__ __forceinline__ void multiply_step(int32_t (&sums)[8][4], uint64_t weight,
                                              uint64_t rows) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.u32 adds, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {" VLLM_FORK_NAMES_OF_8
      "}, %32, %33, adds;\n"
      "}"
      : VLLM_FORK_SUMS_OF_8
      : "l"(weight), "l"(rows), "n"(kAdds ? 1 : 0));
}

template <bool kAdds>
__device__ __forceinline__ void multiply_step(int32_t (&sums)[12][4], uint64_t weight,
                                              uint64_t rows) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.u32 adds, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k32.s32.s8.s8 {" VLLM_FORK_NAMES_OF_12
      "}, %48, %49, adds;\n"
      "}"
      : VLLM_FORK_SUMS_OF_12
      : "l"(weight), "l"(rows), "n"(kAdds ? 1 : 0));
}

template <bool kAdds>
__device__ __forceinline__ void multiply_step(int32_t (&sums)[16][4], uint64_t weight,
                                              uint64_t rows) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.u32 adds, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" VLLM_FORK_NAMES_OF_12
      ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, adds;\n"
      "}"
      : VLLM_FORK_SUMS_OF_12, VLLM_FORK_SUMS_OF(12), VLLM_FORK_SUMS_OF(13),
        VLLM_FORK_SUMS_OF(14), VLLM_FORK_SUMS_OF(15)
      : "l"(weight), "l"(rows), "n"(kAdds ? 1 : 0));
}

}  // namespace vllm_fork

#undef VLLM_FORK_NAMES_OF_12
#undef VLLM_FORK_NAMES_OF_8
#undef VLLM_FORK_SUMS_OF_12
#undef VLLM_FORK_SUMS_OF_8
#undef VLLM_FORK_SUMS_OF

#endif
