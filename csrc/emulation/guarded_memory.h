// Memory that blocks of threads share: garbage at first, and between guards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace vllm_fork::emulation {

constexpr size_t kGuardBytes = 64;
constexpr int kGuard = 0xa5;
constexpr int kGarbage = 0xff;  // floats are NaN, integers -1

// Memory with a guard on either side.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes) : bytes_(bytes), all_(bytes + 3 * kGuardBytes) {
    std::memset(all_.data(), kGuard, all_.size());
    std::memset(start(), kGarbage, bytes);
  }

  std::byte* start() {
    const auto address = reinterpret_cast<uintptr_t>(all_.data()) + kGuardBytes;
    return all_.data() + kGuardBytes + (kGuardBytes - address % kGuardBytes) % kGuardBytes;
  }

  size_t bytes() const { return bytes_; }

  bool is_intact() {
    const auto is_guard = [](std::byte b) { return b == static_cast<std::byte>(kGuard); };
    return std::all_of(all_.data(), start(), is_guard) &&
           std::all_of(start() + bytes_, all_.data() + all_.size(), is_guard);
  }

 private:
  size_t bytes_;
  std::vector<std::byte> all_;
};

}  // namespace vllm_fork::emulation
