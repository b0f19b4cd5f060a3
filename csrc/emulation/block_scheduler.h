// Runs the threads of a CUDA block one at a time on the CPU, as fibers that yield where a GPU's
// threads wait for each other.
//
// The order in which they run is drawn anew at each step: a random warp, its threads in random
// order. So a thread that does not wait for what it reads finds, sooner or later, what was there
// before. Memory that the block shares begins as garbage and lies between guards.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <source_location>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "emulation/guarded_memory.h"
#include "emulation/started_copies.h"

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int nx = 1, unsigned int ny = 1, unsigned int nz = 1)
      : x(nx), y(ny), z(nz) {}
};

namespace vllm_fork::emulation {

constexpr int kWarpThreads = 32;
constexpr int kMostThreads = 1024;
constexpr int kRegisters = 64 * 1024;  // of a block, at most
constexpr size_t kMostSharedBytes = 99 * 1024;  // of a block, on the GPUs that have least
constexpr size_t kMostSharedBytesOfHopper = 227 * 1024;
constexpr size_t kStackBytes = 128 * 1024;      // of a thread

// What went wrong since the last launch; empty if nothing.
inline std::string failure;

// Another seed gives the threads another order.
inline uint64_t schedule_seed = 1;

// Launches, blocks that have run, and how often their threads have waited for each other: what a test
// may set to 0 and look at.
inline uint64_t num_launches = 0;
inline uint64_t num_blocks = 0;
inline uint64_t num_waits = 0;

// xorshift64* (Vigna, 2016).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u | 1) {}

  uint64_t below(uint64_t bound) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 0x2545f4914f6cdd1du >> 33) % bound;
  }

 private:
  uint64_t state_;
};

enum class State { kReady, kAtBarrier, kInWarp, kForCondition, kForKernels, kDone };

struct Thread {
  dim3 index;
  int warp;
  int lane;
  State state = State::kReady;
  bool has_started = false;
  std::source_location place;  // where it waits
  int exchanges = 0;
  std::function<bool()> condition;  // that it waits for
  int num_registers = 0;
  bool has_waited = false;  // for the kernels before
  bool has_shown = false;   // what it has written: see Block::show
  StartedCopies copies;
  jmp_buf registers;
  ucontext_t context;
};

struct Warp {
  int size = 0;  // lanes
  alignas(16) std::byte values[2][kWarpThreads * 64];
};

// What the blocks of a launch have needed.
struct Needs {
  size_t shared_bytes = 0;
  bool warpgroups = false;  // products that only a Hopper makes

  bool are_met() const {
    return shared_bytes <= (warpgroups ? kMostSharedBytesOfHopper : kMostSharedBytes);
  }
};

inline Needs needs;

class Block {
 public:
  Block(dim3 grid, dim3 block, dim3 index, size_t shared_bytes, std::function<void()> kernel,
        uint64_t seed, bool is_dependent = false)
      : grid_dim(grid),
        block_dim(block),
        block_index(index),
        dynamic_(shared_bytes),
        kernel_(std::move(kernel)),
        random_(seed),
        is_dependent_(is_dependent) {
    const unsigned int count = block.x * block.y * block.z;
    threads_.resize(count);
    warps_.resize((count + kWarpThreads - 1) / kWarpThreads);
    for (unsigned int i = 0; i < count; ++i) {
      threads_[i].index = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
      threads_[i].warp = static_cast<int>(i) / kWarpThreads;
      threads_[i].lane = static_cast<int>(i) % kWarpThreads;
      threads_[i].num_registers = kRegisters / static_cast<int>(count) / 8 * 8;
      ++warps_[threads_[i].warp].size;
    }
  }

  // Goes as far as it can while a kernel before may still run. Other blocks may run after that.
  void begin() {
    const size_t bytes = threads_.size() * kStackBytes;
    own_stacks_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    are_kernels_over_ = false;
    go_on();
    current_block = nullptr;
  }

  // To the end: the kernels before have ended.
  void run() {
    ++num_blocks;
    are_kernels_over_ = true;
    for (Thread& thread : threads_) {
      if (thread.state == State::kForKernels) thread.state = State::kReady;
    }
    go_on();
    check_end();
    current_block = nullptr;
  }

  void wait_for_kernels(const std::source_location& place) {
    current_->has_waited = true;
    if (!are_kernels_over_) wait(State::kForKernels, place);
  }

  void wait_at_barrier(const std::source_location& place) {
    pass_on();
    wait(State::kAtBarrier, place);
  }

  // --- what products of warpgroups and bulk copies see of shared memory ---------------------------
  // They see what threads write only if each, between writing it and telling others that it is there,
  // has called show_to_products (PTX ISA, "Async proxy"). Ordinary writes are not seen here, so until
  // its first call a thread counts as one that has written, as after copies that it has awaited.
  void show() { current_->has_shown = true; }
  void hide() { current_->has_shown = false; }

  // The calling thread tells others that what it has written is there.
  void pass_on() { is_all_shown_ = is_all_shown_ && current_->has_shown; }

  void check_shown() {
    if (is_all_shown_ && current_->has_shown) return;
    fail("What a thread wrote is not shown to products and bulk copies.");
  }

  void wait_until(std::function<bool()> condition, const std::source_location& place) {
    current_->condition = std::move(condition);
    wait(State::kForCondition, place);
  }

  // Lets others run, if the drawn order is such.
  void pause(const std::source_location& place) {
    wait_until([] { return true; }, place);
  }

  // What is done beside the threads, at some time from now on and in no order.
  void do_later(std::function<void()> action) { later_.push_back(std::move(action)); }

  // From here on the calling thread has fewer registers, or more, when others have given them back.
  void keep_registers(int count) {
    check_registers(count, count <= current_->num_registers);
    registers_left_ += current_->num_registers - count;
    current_->num_registers = count;
  }

  void take_registers(int count, const std::source_location& place) {
    Thread& self = *current_;
    check_registers(count, count >= self.num_registers);
    const int more = count - self.num_registers;
    while (registers_left_ < more) {
      wait_until([this, more] { return registers_left_ >= more; }, place);
    }
    registers_left_ -= more;
    self.num_registers = count;
  }

  // Each lane gives a value and gets those of all lanes, until it calls again.
  template <typename T>
  const T* exchange(const T& value, const std::source_location& place) {
    static_assert(sizeof(T) <= 64);
    Thread& self = *current_;
    auto* values = reinterpret_cast<T*>(warps_[self.warp].values[self.exchanges++ % 2]);
    values[self.lane] = value;
    wait(State::kInWarp, place);
    return values;
  }

  // Stops the block: the calling thread goes no further.
  void fail(const std::string& sentence) {
    failure = sentence;
    if (current_ != nullptr) _longjmp(scheduler_, 1);
  }

  const Thread& current() const { return *current_; }
  StartedCopies& own_copies() { return current_->copies; }
  std::byte* dynamic_memory() { return dynamic_.start(); }
  size_t dynamic_bytes() const { return dynamic_.bytes(); }

  // The memory for what `key` stands for, the same for all threads.
  std::byte* static_memory(const void* key, size_t bytes) {
    for (auto& [known, memory] : statics_) {
      if (known == key) return memory->start();
    }
    statics_.emplace_back(key, std::make_unique<GuardedMemory>(bytes));
    return statics_.back().second->start();
  }

  const dim3 grid_dim;
  const dim3 block_dim;
  const dim3 block_index;
  static inline Block* current_block = nullptr;

 private:
  void go_on() {
    current_block = this;
    int warp = 0;
    while (failure.empty() && choose_next(&warp)) {
      run_warp(warp);
      release_warp(warp);
      release_barrier();
    }
  }

  static std::string describe(const std::source_location& place) {
    std::ostringstream text;
    text << place.file_name() << ":" << place.line();
    return text.str();
  }

  bool has_ready(int warp) const {
    const int first = warp * kWarpThreads;
    for (int i = first; i < first + warps_[warp].size; ++i) {
      if (threads_[i].state == State::kReady) return true;
    }
    return false;
  }

  // Whether a warp can go on, if need be when something was done beside the threads.
  bool choose_next(int* warp) {
    if (!later_.empty() && random_.below(8) == 0) do_one();
    for (;; do_one()) {
      release_conditions();
      if (choose_warp(warp)) return true;
      if (later_.empty()) return false;
    }
  }

  void do_one() {
    std::swap(later_[random_.below(later_.size())], later_.back());
    const std::function<void()> action = std::move(later_.back());
    later_.pop_back();
    action();
  }

  void check_registers(int count, bool is_in_order) {
    if (count < 24 || count > 256 || count % 8 != 0 || !is_in_order) {
      fail("A warp cannot have so many registers.");
    }
  }

  // Most often the same again: a warp may be far ahead of the others.
  bool choose_warp(int* warp) {
    const auto count = static_cast<int>(warps_.size());
    const auto any = static_cast<int>(random_.below(count));
    const int first = random_.below(4) == 0 ? any : *warp;
    for (int i = 0; i < count; ++i) {
      *warp = (first + i) % count;
      if (has_ready(*warp)) return true;
    }
    return false;
  }

  void run_warp(int warp) {
    int order[kWarpThreads];
    const int size = warps_[warp].size;
    for (int i = 0; i < size; ++i) order[i] = i;
    for (int i = size - 1; i > 0; --i) std::swap(order[i], order[random_.below(i + 1)]);
    for (int i = 0; i < size && failure.empty(); ++i) {
      Thread& thread = threads_[warp * kWarpThreads + order[i]];
      if (thread.state == State::kReady) resume(thread);
    }
  }

  void release_warp(int warp) {
    const auto first = threads_.begin() + warp * kWarpThreads;
    const auto last = first + warps_[warp].size;
    const auto waits = [first](const Thread& t) {
      return t.state == State::kInWarp && t.place.line() == first->place.line();
    };
    if (!std::all_of(first, last, waits)) return;
    std::for_each(first, last, [](Thread& t) { t.state = State::kReady; });
  }

  void release_conditions() {
    for (Thread& thread : threads_) {
      if (thread.state == State::kForCondition && thread.condition()) thread.state = State::kReady;
    }
  }

  void release_barrier() {
    const auto waits = [this](const Thread& t) {
      return t.state == State::kAtBarrier && t.place.line() == threads_[0].place.line();
    };
    if (!std::all_of(threads_.begin(), threads_.end(), waits)) return;
    for (Thread& thread : threads_) thread.state = State::kReady;
  }

  void check_end() {
    current_ = nullptr;
    for (const Thread& thread : threads_) {
      if (!failure.empty() || thread.state == State::kDone) continue;
      fail(std::string("Not all threads of a ") +
           (thread.state == State::kInWarp ? "warp" : "block") + " come to " +
           describe(thread.place) + ".");
    }
    if (failure.empty() && !later_.empty()) fail("A block ends before its copies are there.");
    const auto has_waited = [](const Thread& thread) { return thread.has_waited; };
    if (failure.empty() && is_dependent_ &&
        !std::all_of(threads_.begin(), threads_.end(), has_waited)) {
      fail("A thread ends without having waited for the kernels before.");
    }
    bool is_intact = dynamic_.is_intact();
    size_t bytes = dynamic_.bytes();
    for (auto& [key, memory] : statics_) {
      is_intact = is_intact && memory->is_intact();
      bytes += memory->bytes();
    }
    if (failure.empty() && !is_intact) fail("Something was written beside shared memory.");
    needs.shared_bytes = std::max(needs.shared_bytes, bytes);
  }

  // Threads begin with makecontext, and go on with longjmp, which asks nothing of the kernel.
  void resume(Thread& thread) {
    current_ = &thread;
    if (_setjmp(scheduler_) == 0) {
      if (thread.has_started) _longjmp(thread.registers, 1);
      thread.has_started = true;
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = stack_of(thread);
      thread.context.uc_stack.ss_size = kStackBytes;
      thread.context.uc_link = nullptr;
      makecontext(&thread.context, &Block::enter, 0);
      setcontext(&thread.context);
    }
    current_ = nullptr;
  }

  static void enter() {
    Block& block = *current_block;
    block.kernel_();
    block.current_->state = State::kDone;
    _longjmp(block.scheduler_, 1);
  }

  void wait(State state, const std::source_location& place) {
    ++num_waits;
    Thread& self = *current_;
    self.state = state;
    self.place = place;
    if (_setjmp(self.registers) == 0) _longjmp(scheduler_, 1);
  }

  void* stack_of(const Thread& thread) {
    static const auto stacks = std::make_unique<std::byte[]>(kMostThreads * kStackBytes);
    std::byte* first = own_stacks_ != nullptr ? own_stacks_.get() : stacks.get();
    return first + (&thread - threads_.data()) * kStackBytes;
  }

  GuardedMemory dynamic_;
  std::vector<std::pair<const void*, std::unique_ptr<GuardedMemory>>> statics_;
  std::function<void()> kernel_;
  Random random_;
  bool is_dependent_;  // has to wait for the kernels before
  bool are_kernels_over_ = true;
  std::unique_ptr<std::byte[]> own_stacks_;  // of a block that others may interrupt
  std::vector<std::function<void()>> later_;
  int registers_left_ = 0;
  bool is_all_shown_ = true;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Thread* current_ = nullptr;
  jmp_buf scheduler_;
};

}  // namespace vllm_fork::emulation
