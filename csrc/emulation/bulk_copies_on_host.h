// cuda/primitives/bulk_copy.cuh for the emulation: a copy is made at any time after its start, in
// no order, and then tells its barrier.
#pragma once

#include "emulation/copies_on_host.h"
#include "emulation/phase_barriers_on_host.h"

namespace vllm_fork {

inline void copy_bulk(void* shared, const void* global, int bytes, PhaseBarrier& barrier) {
  constexpr int kUnit = 16;
  emulation::Block& block = *emulation::Block::current_block;
  if (bytes <= 0 || bytes % kUnit != 0) block.fail("A copy is not of whole units.");
  const auto count = static_cast<size_t>(bytes);
  emulation::check_copy(shared, global, count, kUnit);
  // A wrong address is to be found while there is a thread to blame.
  const volatile auto* from = static_cast<const std::byte*>(global);
  static_cast<void>(from[0]);
  static_cast<void>(from[count - 1]);
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
