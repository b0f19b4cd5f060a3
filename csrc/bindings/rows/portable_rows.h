// What the CPU implementations of the portable ops share.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cfenv>
#include <cstddef>
#include <vector>

#ifdef VLLM_FORK_X86
#include <xmmintrin.h>
#endif

#include "bindings/formats.h"
#include "cpu/team/team.h"
#include "cpu/isa.h"

namespace vllm_fork {

// The numbers that a thread is worth waking for.
constexpr int64_t kNumbersPerTask = 16 * 1024;

// Rounding to the nearest and subnormal numbers, whatever the process has set: another library may
// have asked the CPU to flush them.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() : is_changed_(!is_default()) {
    if (!is_changed_) return;
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() {
    if (is_changed_) std::fesetenv(&saved_);
  }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  // Of vectors, with which x86-64 computes; to set it takes as long as short rows do.
  static bool is_default() {
#ifdef VLLM_FORK_X86
    constexpr unsigned kRaised = 0x3f;  // exceptions that were
    return (_mm_getcsr() & ~kRaised) == 0x1f80;
#else
    return false;
#endif
  }

  bool is_changed_;
  std::fenv_t saved_;
};

// Memory of the calling thread that is kept from call to call, at a multiple of 64 bytes. A caller
// has one piece of it at a time.
inline std::byte* scratch_bytes(int64_t count) {
  thread_local std::vector<std::byte> memory;
  if (static_cast<int64_t>(memory.size()) < count + 64) memory.assign(count + 64, std::byte{0});
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (64 - address % 64) % 64;
}

inline float* scratch_floats(int64_t count) {
  return reinterpret_cast<float*>(scratch_bytes(count * static_cast<int64_t>(sizeof(float))));
}

// Calls work(i) for every i below `count`, each of which is about `size` numbers, on all threads.
template <typename Work>
void for_each_row(int64_t count, int64_t size, const Work& work) {
  const int64_t grain = std::max<int64_t>(1, kNumbersPerTask / std::max<int64_t>(1, size));
  share_work(0, count, grain, [&](int64_t begin, int64_t end) {
    const DefaultFloatEnvironment environment;
    for (int64_t i = begin; i < end; ++i) work(i);
  });
}

// Rows of numbers in memory, whatever their format.
struct Numbers {
  std::byte* start;
  Format format;

  explicit Numbers(const Tensor& tensor)
      : start(static_cast<std::byte*>(tensor.data_ptr())), format(format_of(tensor)) {}

  std::byte* at(int64_t index) const { return start + index * size_of(format); }

  void read(int64_t index, float* target, int64_t count) const {
    chosen_isa().operations->widen(format, at(index), target, count);
  }
  void write(int64_t index, const float* source, int64_t count) const {
    chosen_isa().operations->narrow(format, source, at(index), count);
  }
};

}  // namespace vllm_fork
