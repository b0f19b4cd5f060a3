// Words of 32 bits: several that are moved as one, and instructions that do two things at once.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/primitives/device.cuh"

namespace vllm_fork {

// 8 or 16 bytes that are moved as one.
struct alignas(8) Words2 {
  uint32_t words[2];
};
struct alignas(16) Words4 {
  uint32_t words[4];
};

// Words of global memory in one access, of which nvcc makes several where they become smaller numbers.
#if defined(VLLM_FORK_EMULATE_CUDA)

template <typename Words>
void load_global(const void* from, Words& words) {
  std::memcpy(&words, from, sizeof words);
}

template <typename Words>
void store_global(void* to, const Words& words) {
  std::memcpy(to, &words, sizeof words);
}

#else

__device__ __forceinline__ void load_global(const void* from, Words2& to) {
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(to.words[0]), "=r"(to.words[1])
               : "l"(from)
               : "memory");
}

__device__ __forceinline__ void load_global(const void* from, Words4& to) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.words[0]), "=r"(to.words[1]), "=r"(to.words[2]), "=r"(to.words[3])
               : "l"(from)
               : "memory");
}

__device__ __forceinline__ void store_global(void* to, const Words2& from) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(from.words[0]),
               "r"(from.words[1])
               : "memory");
}

__device__ __forceinline__ void store_global(void* to, const Words4& from) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from.words[0]),
               "r"(from.words[1]), "r"(from.words[2]), "r"(from.words[3])
               : "memory");
}

#endif

// The larger one of a + b and c.
__device__ __forceinline__ int32_t larger_sum(int32_t a, int32_t b, int32_t c) {
  return __viaddmax_s32(a, b, c);
}

// Four bytes of the eight of two words; a digit of `which`, from the lowest on, says which.
__device__ __forceinline__ uint32_t bytes_of(uint32_t low, uint32_t high, uint32_t which) {
  return __byte_perm(low, high, which);
}

}  // namespace vllm_fork
