// The load of matrices from shared memory in the order of the tensor cores' instructions.
#pragma once

#include <cstdint>

#include "cuda/primitives/device.cuh"

namespace vllm_fork {

// Four matrices of 8 rows of 16 bytes, all lanes of a warp together: lane 8 m + i gives the address
// of row i of matrix m, and lane 4 g + q gets bytes 4 q .. 4 q + 3 of row g of each matrix.
#if defined(VLLM_FORK_EMULATE_CUDA)

inline void load_matrices(uint32_t (&words)[4], const void* own_row) {
  const void* const* rows = emulation::exchange(own_row);
  const int lane = emulation::lane();
  for (int m = 0; m < 4; ++m) {
    const auto* row = static_cast<const std::byte*>(rows[8 * m + lane / 4]);
    std::memcpy(&words[m], row + lane % 4 * 4, 4);
  }
}

#else

__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const void* own_row) {
  const auto address = static_cast<unsigned int>(__cvta_generic_to_shared(own_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

#endif

}  // namespace vllm_fork
