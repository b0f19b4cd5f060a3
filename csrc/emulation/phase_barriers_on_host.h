// cuda/primitives/hopper/phase_barrier.cuh for the emulation.
#pragma once

#include "emulation/cuda_on_host.h"

namespace vllm_fork {

struct PhaseBarrier {
  int16_t counted;
  int16_t left;       // arrivals, until the phase is over
  int32_t parity : 2;
  int32_t bytes : 30;  // that are expected and not yet there; below 0 if they come first

  void begin(int arrivals) {
    counted = left = static_cast<int16_t>(arrivals);
    parity = 0;
    bytes = 0;
    emulation::Block::current_block->hide();
  }

  void arrive(const Place& place = Place::current()) { arrive_expecting(0, place); }

  void arrive_expecting(int more, const Place& place = Place::current()) {
    emulation::Block& block = *emulation::Block::current_block;
    check(block);
    block.pass_on();
    if (left == 0) block.fail("More threads arrive at a barrier than it counts.");
    bytes += more;
    --left;
    end_if_all_is_there();
    block.pause(place);  // others may come in between
  }

  // By a copy.
  void complete(int some) {
    check(*emulation::Block::current_block);
    bytes -= some;
    end_if_all_is_there();
  }

  void wait(int awaited, const Place& place = Place::current()) {
    emulation::Block::current_block->wait_until([this, awaited] { return parity != awaited; },
                                                place);
  }

 private:
  void check(emulation::Block& block) const {
    constexpr int kMostBytes = (1 << 20) - 1;  // that a barrier counts
    if (counted <= 0 || left < 0 || left > counted) {
      block.fail("A thread arrives at a barrier that has not begun.");
    }
    if (std::abs(bytes) > kMostBytes) block.fail("A barrier counts too many bytes.");
  }

  void end_if_all_is_there() {
    if (left > 0 || bytes != 0) return;
    parity ^= 1;
    left = counted;
  }
};

static_assert(sizeof(PhaseBarrier) == 8);

}  // namespace vllm_fork
