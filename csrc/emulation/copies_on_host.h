// cuda/primitives/copy_async.cuh for the emulation: a copy is made at some time between its start and the wait
// for it, so that whoever reads too early, or writes too late, now and then finds the wrong bytes.
#pragma once

#include <cstring>
#include <deque>
#include <vector>

#include "emulation/cuda_on_host.h"

namespace vllm_fork::emulation {

struct Copy {
  void* to;
  const void* from;  // null for zeros
  size_t bytes;

  void make() const;
};

// What a thread has started: its groups, and what is in none yet.
struct Copies {
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> started;
};

inline void Copy::make() const {
  if (from == nullptr) {
    std::memset(to, 0, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

// Those of the current thread. A thread that ends has waited for all of its copies.
inline Copies& own_copies() {
  static std::vector<Copies> of_threads(kMostThreads);
  const dim3 size = Block::current_block->block_dim;
  const dim3 index = Block::current_block->current().index;
  return of_threads[(index.z * size.y + index.y) * size.x + index.x];
}

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
  emulation::Copies& own = emulation::own_copies();
  own.groups.push_back(std::move(own.started));
  own.started.clear();
}

template <int kPending>
void wait_for_copies() {
  emulation::Copies& own = emulation::own_copies();
  for (; own.groups.size() > kPending; own.groups.pop_front()) {
    for (const emulation::Copy& copy : own.groups.front()) copy.make();
  }
}

}  // namespace vllm_fork
