// cuda/product/warpgroup_instructions.cuh for the emulation. A product is made when it is asked for, so that
// a kernel which changes too early what is multiplied is not found out.
#pragma once

#include <cstring>

#include "emulation/cuda_on_host.h"

namespace vllm_fork {

inline constexpr bool kHasWarpgroups = true;
inline void stop_kernel() {}

namespace emulation {

struct WarpgroupWords {
  uint32_t words[4];  // as in cuda/primitives/matrix_instructions.cuh
};

// Row `row` of the warp's 16, channel k.
inline int left_number(const WarpgroupWords* lanes, int row, int k) {
  const uint32_t word = lanes[row % 8 * 4 + k % 16 / 4].words[row / 8 + k / 16 * 2];
  return static_cast<int8_t>(word >> (k % 4 * 8));
}

// Byte k of a row of digits, by the fields that say where they lie.
inline int right_number(uint64_t matrices, int tile, int row, int k) {
  const auto field = [matrices](int bit) { return (matrices >> bit & 0x3fff) << 4; };
  const uint64_t at = field(0) + k / 16 * field(16) + tile * field(32) + row * 16 + k % 16;
  Block& block = *Block::current_block;
  if (at >= block.dynamic_bytes()) block.fail("A product is of what is beside shared memory.");
  return static_cast<int8_t>(block.dynamic_memory()[at]);
}

}  // namespace emulation

inline void multiply_add(int32_t (&sums)[kWarpgroupTiles][4], const uint32_t (&a)[4],
                         uint64_t rows) {
  const emulation::WarpgroupWords own{{a[0], a[1], a[2], a[3]}};
  const emulation::WarpgroupWords* lanes = emulation::exchange(own);
  const int lane = emulation::lane();
  for (int tile = 0; tile < kWarpgroupTiles; ++tile) {
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < kStep; ++k) {
        sums[tile][i] += emulation::left_number(lanes, lane / 4 + i / 2 * 8, k) *
                         emulation::right_number(rows, tile, lane % 4 * 2 + i % 2, k);
      }
    }
  }
}

inline uint64_t row_matrices_at(const void* shared, int tile_bytes) {
  const auto* start = emulation::Block::current_block->dynamic_memory();
  const auto offset = static_cast<const std::byte*>(shared) - start;
  return row_matrices(static_cast<unsigned int>(offset), tile_bytes);
}

inline void show_copies() {}
inline void begin_products() {}
inline void commit_products() {}
inline void wait_for_products() {}

}  // namespace vllm_fork
