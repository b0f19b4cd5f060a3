// cuda/primitives/hopper/warpgroup.cuh for the emulation. A group of products is made at some time between
// its end and the wait for it, so that whoever changes too early what is multiplied, or looks too
// early at a sum, now and then finds the wrong numbers.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "emulation/cuda_on_host.h"
#include "emulation/dot_on_host.h"

namespace vllm_fork {

inline constexpr bool kHasWarpgroups = true;
inline void stop_kernel() {}

namespace emulation {

struct WarpgroupWords {
  uint32_t words[4];  // as in cuda/primitives/matrix_instructions.cuh
};

// A left operand in registers: the words of the 32 lanes when the product was asked for.
struct LeftWords {
  WarpgroupWords lanes[kWarpThreads];
  bool is_signed;

  // Row `row` of the warp's 16.
  void read(int row, int8_t (&bytes)[kStepBytes]) const {
    for (int i = 0; i < kStepBytes / 4; ++i) {
      std::memcpy(bytes + 4 * i, &lanes[row % 8 * 4 + i % 4].words[row / 8 + i / 4 * 2], 4);
    }
  }
};

inline LeftWords left_words(const uint32_t (&a)[4], bool is_signed, const Place& place) {
  const WarpgroupWords* lanes = exchange(WarpgroupWords{{a[0], a[1], a[2], a[3]}}, place);
  LeftWords left{{}, is_signed};
  std::copy(lanes, lanes + kWarpThreads, left.lanes);
  return left;
}

// A row of matrices, by the fields that say where they lie.
inline void read_row(uint64_t matrices, int row, int8_t (&bytes)[kStepBytes]) {
  const auto field = [matrices](int bit) { return (matrices >> bit & 0x3fff) << 4; };
  Block& block = *Block::current_block;
  for (int half = 0; half < 2; ++half) {
    const uint64_t at = field(0) + half * field(16) + row / 8 * field(32) + row % 8 * 16;
    if (at + 16 > block.dynamic_bytes()) block.fail("A product is of what is beside shared memory.");
    std::memcpy(bytes + 16 * half, block.dynamic_memory() + at, 16);
  }
}

// A left operand in shared memory: the warp has 16 rows from `first_row` on.
struct LeftMatrices {
  static constexpr bool is_signed = true;
  uint64_t place;
  int first_row;

  explicit LeftMatrices(uint64_t matrices)
      : place(matrices), first_row(Block::current_block->current().warp % 4 * 16) {}

  void read(int row, int8_t (&bytes)[kStepBytes]) const { read_row(place, first_row + row, bytes); }
};

using Product = std::function<void()>;

// What a thread has asked for: its groups, and what is in none yet.
struct Products {
  std::deque<std::vector<Product>> groups;
  std::vector<Product> started;

  void make_first() {
    for (const Product& product : groups.front()) product();
    groups.pop_front();
  }
};

inline Products& own_products() {
  static std::vector<Products> of_threads(kMostThreads);
  const Thread& thread = Block::current_block->current();
  return of_threads[thread.warp * kWarpThreads + thread.lane];
}

// sums (+)= left * right of 32 channels, for the lane's part of the warp's 16 rows and kTiles times 8
// columns; left.read(row, bytes) is of the warp's rows, whose bytes may have no sign.
template <int kTiles, typename Left>
void ask_for_product(int32_t (&sums)[kTiles][4], const Left& left, uint64_t right, bool adds) {
  needs.warpgroups = true;
  Block::current_block->check_shown();
  const int own = lane();
  own_products().started.push_back([&sums, left, right, adds, own] {
    int8_t rows[2][kStepBytes];
    for (int r = 0; r < 2; ++r) left.read(own / 4 + 8 * r, rows[r]);
    for (int tile = 0; tile < kTiles; ++tile) {
      for (int column = 0; column < 2; ++column) {
        int8_t bytes[kStepBytes];
        read_row(right, tile * 8 + own % 4 * 2 + column, bytes);
        for (int r = 0; r < 2; ++r) {
          int32_t& sum = sums[tile][2 * r + column];
          const int32_t product =
              left.is_signed ? dot_of_step(rows[r], bytes)
                             : dot_of_step(reinterpret_cast<const uint8_t*>(rows[r]), bytes);
          sum = (adds ? sum : 0) + product;
        }
      }
    }
  });
}

inline bool are_made_at_once() {
  static Random random(schedule_seed);
  return random.below(2) == 0;
}

}  // namespace emulation

inline unsigned int sixteens_of(const void* shared) {
  const auto* start = emulation::Block::current_block->dynamic_memory();
  return static_cast<unsigned int>(static_cast<const std::byte*>(shared) - start) >> 4;
}

inline void show_to_products() { emulation::Block::current_block->show(); }
inline void begin_products(const Place& place = Place::current()) {
  emulation::exchange(0, place);
}

inline void commit_products() {
  emulation::Products& own = emulation::own_products();
  own.groups.push_back(std::move(own.started));
  own.started.clear();
  if (!emulation::are_made_at_once()) return;
  while (!own.groups.empty()) own.make_first();
}

template <int kPending = 0>
void wait_for_products() {
  emulation::Products& own = emulation::own_products();
  while (own.groups.size() > kPending) own.make_first();
}

template <int kCount>
void keep_registers() {
  emulation::Block::current_block->keep_registers(kCount);
}
template <int kCount>
void take_registers(const Place& place = Place::current()) {
  emulation::Block::current_block->take_registers(kCount, place);
}

}  // namespace vllm_fork
