// Words of 32 bits: several that are moved as one, and instructions that do two things at once.
#pragma once

#include <cstdint>

#include "cuda/primitives/device.cuh"

namespace vllm_fork {

// 8 or 16 bytes that are moved as one.
struct alignas(8) Words2 {
  uint32_t words[2];
};
struct alignas(16) Words4 {
  uint32_t words[4];
};

// The larger one of a + b and c.
__device__ __forceinline__ int32_t larger_sum(int32_t a, int32_t b, int32_t c) {
  return __viaddmax_s32(a, b, c);
}

// Four bytes of the eight of two words; a digit of `which`, from the lowest on, says which.
__device__ __forceinline__ uint32_t bytes_of(uint32_t low, uint32_t high, uint32_t which) {
  return __byte_perm(low, high, which);
}

}  // namespace vllm_fork
