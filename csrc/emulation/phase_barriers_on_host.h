// cuda/primitives/phase_barrier.cuh for the emulation.
#pragma once

#include "emulation/cuda_on_host.h"

namespace vllm_fork {

struct PhaseBarrier {
  int32_t counted;
  int16_t left;   // arrivals, until the phase is over
  int16_t phase;  // its parity

  void begin(int arrivals) { *this = {arrivals, static_cast<int16_t>(arrivals), 0}; }

  void arrive(const Place& place = Place::current()) {
    emulation::Block& block = *emulation::Block::current_block;
    if (counted <= 0 || left <= 0 || left > counted) {
      block.fail("A thread arrives at a barrier that has not begun.");
    }
    if (--left == 0) {
      phase ^= 1;
      left = static_cast<int16_t>(counted);
    }
    block.pause(place);  // others may come in between
  }

  void wait(int parity, const Place& place = Place::current()) {
    emulation::Block::current_block->wait_until([this, parity] { return phase != parity; }, place);
  }
};

static_assert(sizeof(PhaseBarrier) == 8);

}  // namespace vllm_fork
