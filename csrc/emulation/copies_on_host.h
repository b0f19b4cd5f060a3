// cuda/primitives/copy_async.cuh for the emulation: a copy is made at some time between its start and the wait
// for it, so that whoever reads too early, or writes too late, now and then finds the wrong bytes.
#pragma once

#include "emulation/cuda_on_host.h"

namespace vllm_fork::emulation {

// Those of the current thread. A thread that ends has waited for all of its copies.
inline StartedCopies& own_copies() { return Block::current_block->own_copies(); }

inline void check_copy(const void* shared, const void* global, size_t bytes, size_t alignment) {
  Block& block = *Block::current_block;
  const auto* first = block.dynamic_memory();
  const auto* byte = static_cast<const std::byte*>(shared);
  const bool is_shared = first <= byte && byte + bytes <= first + block.dynamic_bytes();
  if (!is_shared) block.fail("A copy goes beside the shared memory of the launch.");
  const auto bits = reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global);
  if (bits % alignment != 0) block.fail("A copy is not aligned to its size.");
}

inline bool is_made_at_once() {
  static Random random(schedule_seed);
  return random.below(2) == 0;
}

inline void start_copy(void* shared, const void* global, size_t bytes, bool is_there) {
  check_copy(shared, global, bytes, bytes);
  const Copy copy{shared, is_there ? global : nullptr, bytes};
  if (is_made_at_once()) {
    copy.make();
  } else {
    own_copies().started.push_back(copy);
  }
}

}  // namespace vllm_fork::emulation

namespace vllm_fork {

inline void copy_async(void* shared, const void* global, bool is_there) {
  emulation::start_copy(shared, global, 16, is_there);
}

inline void copy_word_async(void* shared, const void* global) {
  emulation::start_copy(shared, global, 4, true);
}

inline void commit_copies() {
  emulation::StartedCopies& own = emulation::own_copies();
  own.groups.push_back(std::move(own.started));
  own.started.clear();
}

template <int kPending>
void wait_for_copies() {
  emulation::StartedCopies& own = emulation::own_copies();
  while (own.groups.size() > kPending) {
    for (const emulation::Copy& copy : own.groups.front()) copy.make();
    own.groups.erase(own.groups.begin());
    emulation::Block::current_block->hide();
  }
}

}  // namespace vllm_fork
