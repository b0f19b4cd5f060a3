#include "cpu/team/team.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#ifdef VLLM_FORK_X86
#include <immintrin.h>
#endif

namespace vllm_fork {
namespace {

// In a team, a thread is given work that is so much less than what it is worth waking for.
constexpr int64_t kShareOfGrain = 8;

// So many parts for each thread: one that is late, or slower, has fewer of them.
constexpr int64_t kPartsOfThread = 3;

// Waits a little; after some time, others may have the core.
class Patience {
 public:
  void wait() {
    if (++count_ > kSpins) {
      std::this_thread::yield();
      return;
    }
#ifdef VLLM_FORK_X86
    _mm_pause();
#endif
  }

 private:
  static constexpr int kSpins = 2000;  // some ten microseconds
  int count_ = 0;
};

// What is shared out now.
struct Job {
  const Work* work;
  int64_t end, step;
};

class Team {
 public:
  explicit Team(int64_t threads) : threads_(threads) {}

  int64_t threads() const { return threads_; }

  // For the leader: shares work out, and returns when all of it is done.
  void share(int64_t begin, const Job& job) {
    job_ = job;
    next_.store(begin, std::memory_order_relaxed);
    state_.fetch_add(1);  // before it is open, and after it is closed, no helper looks at the job
    take_parts();
    state_.fetch_add(1);
    for (Patience patience; busy_.load() > 0;) patience.wait();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  // For all others: returns when the leader has ended.
  void help() {
    int64_t last = 0;
    for (Patience patience;;) {
      const int64_t state = state_.load();
      if (state == kEnded) return;
      if (state == last || state % 2 == 0) {
        patience.wait();
        continue;
      }
      last = state;
      busy_.fetch_add(1);  // from here on the leader waits for this thread, if the job is open
      if (state_.load() == state) take_parts();
      busy_.fetch_sub(1);
      patience = {};
    }
  }

  void end() { state_.store(kEnded); }

 private:
  static constexpr int64_t kEnded = -2;

  void take_parts() {
    try {
      for (;;) {
        const int64_t first = next_.fetch_add(job_.step, std::memory_order_relaxed);
        if (first >= job_.end) return;
        (*job_.work)(first, std::min(first + job_.step, job_.end));
      }
    } catch (...) {
      keep(std::current_exception());
    }
  }

  void keep(std::exception_ptr failure) {
    if (!has_failure_.test_and_set()) failure_ = failure;
  }

  const int64_t threads_;
  Job job_{};
  // Each is written by several threads, so that they are not in one line of the cache.
  alignas(64) std::atomic<int64_t> next_ = 0;
  alignas(64) std::atomic<int64_t> busy_ = 0;
  alignas(64) std::atomic<int64_t> state_ = 0;  // odd while a job is open
  std::atomic_flag has_failure_ = ATOMIC_FLAG_INIT;
  std::exception_ptr failure_;
};

thread_local Team* led = nullptr;  // by this thread, while it is not at work on a part itself

class Leading {
 public:
  explicit Leading(Team* team) : before_(std::exchange(led, team)) {}
  ~Leading() { led = before_; }
  Leading(const Leading&) = delete;
  Leading& operator=(const Leading&) = delete;

 private:
  Team* before_;
};

}  // namespace

void with_team(const std::function<void()>& lead) {
  const int64_t threads = torch::stable::get_num_threads();
  if (threads == 1 || led != nullptr) return lead();
  Team team(threads);
  std::exception_ptr failure;
  torch::stable::parallel_for(0, threads, 1, [&](int64_t first, int64_t) {
    if (first > 0) return team.help();
    try {
      const Leading leading(&team);
      lead();
    } catch (...) {
      failure = std::current_exception();
    }
    team.end();
  });
  if (failure) std::rethrow_exception(failure);
}

bool leads_team() { return led != nullptr; }

void share_work(int64_t begin, int64_t end, int64_t grain, const Work& work) {
  Team* team = led;
  if (team == nullptr) return torch::stable::parallel_for(begin, end, grain, work);
  const int64_t count = end - begin, parts = team->threads() * kPartsOfThread;
  const int64_t step = std::max({int64_t{1}, grain / kShareOfGrain, (count + parts - 1) / parts});
  const Leading nobody(nullptr);
  if (count <= step) {
    if (count > 0) work(begin, end);
    return;
  }
  team->share(begin, {&work, end, step});
}

}  // namespace vllm_fork
