// What the kernels of chains share. Include it only where code is compiled for AVX512_BF16.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace vllm_fork {
namespace {

// Two numbers next to each other, in all lanes.
inline __m512bh broadcast_pair(const uint16_t* numbers) {
  int bits;
  std::memcpy(&bits, numbers, sizeof(bits));
  return (__m512bh)_mm512_set1_epi32(bits);
}

// Writes the sums of the first block of columns, and adds those of the blocks behind it.
inline void store_block(float* target, __m512 sums, bool is_first) {
  _mm512_storeu_ps(target, is_first ? sums : _mm512_add_ps(_mm512_loadu_ps(target), sums));
}

}  // namespace
}  // namespace vllm_fork
