// Copies that a thread has started and not yet waited for.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace vllm_fork::emulation {

struct Copy {
  void* to;
  const void* from;  // null for zeros
  size_t bytes;

  void make() const {
    if (from == nullptr) {
      std::memset(to, 0, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
};

// Its groups, the first one first, and what is in none yet.
struct StartedCopies {
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> started;
};

}  // namespace vllm_fork::emulation
