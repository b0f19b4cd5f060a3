// cuda/primitives/hopper/bulk_copy.cuh for the emulation: a copy is made at any time after its start, in
// no order, and then tells its barrier.
#pragma once

#include "emulation/copies_on_host.h"
#include "emulation/phase_barriers_on_host.h"

namespace vllm_fork {

namespace emulation {

constexpr int kUnit = 16;

// A wrong address is to be found while there is a thread to blame.
inline void check_source(const void* global, int bytes) {
  if (bytes <= 0 || bytes % kUnit != 0) Block::current_block->fail("A copy is not of whole units.");
  const volatile auto* from = static_cast<const std::byte*>(global);
  static_cast<void>(from[0]);
  static_cast<void>(from[bytes - 1]);
}

}  // namespace emulation

inline void prefetch_bulk(const void* global, int bytes) { emulation::check_source(global, bytes); }

inline void copy_bulk(void* shared, const void* global, int bytes, PhaseBarrier& barrier) {
  emulation::Block& block = *emulation::Block::current_block;
  block.check_shown();
  emulation::check_source(global, bytes);
  const auto count = static_cast<size_t>(bytes);
  emulation::check_copy(shared, global, count, emulation::kUnit);
  const auto copy = [=, &barrier] {
    std::memcpy(shared, global, count);
    barrier.complete(bytes);
  };
  if (emulation::is_made_at_once()) {
    copy();
  } else {
    block.do_later(copy);
  }
}

}  // namespace vllm_fork
