// Threads that stay together for many operations.
//
// PyTorch starts and joins its threads for every operation. A step of a small model has a hundred
// operations of some microseconds, of which each would wait for a thread that has lost its core, or
// has gone to sleep. A team is started once: who leads it goes from operation to operation and gives
// the others parts of each; one who does not come leaves them to the leader.
#pragma once

#include <cstdint>
#include <functional>

namespace vllm_fork {

// Calls lead() with a team of PyTorch's threads, which share_work() gives work to. PyTorch's own
// operations have one thread in lead(). What it throws is thrown.
void with_team(const std::function<void()>& lead);

// Whether this thread leads a team now.
bool leads_team();

// Work on a part of a range, from the first to before the last.
using Work = std::function<void(int64_t, int64_t)>;

// Calls work for parts of begin..end, which together are all of it. A thread is worth waking for
// `grain`; in a team, whose threads are awake, parts are smaller. Without one it is at::parallel_for.
void share_work(int64_t begin, int64_t end, int64_t grain, const Work& work);

}  // namespace vllm_fork
