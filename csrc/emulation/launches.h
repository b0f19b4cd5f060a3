// Launches of kernels, one after the other as in a stream, and what of a kernel runs beside the one
// before.
//
// Of a kernel that has to wait for those before by itself (cuda/primitives/dependent_launch.cuh),
// some blocks go as far as they can at any time while the kernel before runs, also before its first
// block. So the one before runs only when it is known what follows, or that nothing does: where
// launches are deferred, their memory must be there until finish() was called.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "emulation/address_check.h"
#include "emulation/block_scheduler.h"

namespace vllm_fork::emulation {

// The blocks of a launch, which run one after the other, in no order.
class Grid {
 public:
  Grid(dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> kernel, bool is_dependent)
      : grid_(grid),
        block_(block),
        shared_bytes_(shared_bytes),
        kernel_(std::move(kernel)),
        is_dependent_(is_dependent),
        random_(schedule_seed + num_launches),
        first_(random_.below(count())),
        blocks_(std::min(count(), kEarlyBlocks)) {}

  bool is_dependent() const { return is_dependent_; }

  // All of it; `next` is what follows, if it need not wait for that.
  void run(Grid* next) {
    const AddressCheck check;
    needs = Needs();
    std::vector<uint64_t> moments(next == nullptr ? 0 : next->blocks_.size());
    for (uint64_t& moment : moments) moment = draw_moment();
    for (uint64_t i = 0; i < count() && failure.empty(); ++i) {
      for (size_t early = 0; early < moments.size() && failure.empty(); ++early) {
        if (moments[early] == i) next->begin(early);
      }
      std::unique_ptr<Block> block = take(i);
      if (failure.empty()) block->run();
    }
    if (failure.empty() && !needs.are_met()) failure = "A block has too much shared memory.";
  }

 private:
  static constexpr uint64_t kEarlyBlocks = 4;

  // Before which block one of the next launch begins: the first, any, or none.
  uint64_t draw_moment() {
    const uint64_t kind = random_.below(3);
    return kind == 0 ? 0 : kind == 1 ? random_.below(count()) : count();
  }

  uint64_t count() const { return uint64_t{grid_.x} * grid_.y * grid_.z; }

  std::unique_ptr<Block> make(uint64_t i) {
    const uint64_t b = (first_ + i) % count();
    const dim3 index(b % grid_.x, b / grid_.x % grid_.y, b / (uint64_t{grid_.x} * grid_.y));
    const uint64_t seed = schedule_seed + random_.below(1u << 30);
    return std::make_unique<Block>(grid_, block_, index, shared_bytes_, kernel_, seed,
                                   is_dependent_);
  }

  void begin(size_t early) {
    blocks_[early] = make(early);
    blocks_[early]->begin();
  }

  // The next block, which may have begun.
  std::unique_ptr<Block> take(uint64_t i) {
    const bool has_begun = i < blocks_.size() && blocks_[i] != nullptr;
    return has_begun ? std::move(blocks_[i]) : make(i);
  }

  dim3 grid_;
  dim3 block_;
  size_t shared_bytes_;
  std::function<void()> kernel_;
  bool is_dependent_;
  Random random_;
  uint64_t first_;
  std::vector<std::unique_ptr<Block>> blocks_;  // that may begin early
};

class Launches {
 public:
  bool are_deferred = false;

  void add(Grid grid) {
    ++num_launches;
    auto next = std::make_unique<Grid>(std::move(grid));
    if (!next->is_dependent()) finish();
    if (last_ != nullptr && failure.empty()) last_->run(next.get());
    last_ = std::move(next);
    if (!are_deferred || !last_->is_dependent()) finish();
  }

  // Runs what is left: nothing follows.
  void finish() {
    const std::unique_ptr<Grid> last = std::move(last_);
    if (last != nullptr && failure.empty()) last->run(nullptr);
  }

 private:
  std::unique_ptr<Grid> last_;
};

inline Launches launches;

// Whether a GPU takes a launch of this size.
inline bool is_possible(dim3 grid, dim3 block) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const bool is_grid = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffu &&
                       grid.y <= 65535 && grid.z <= 65535;
  return is_grid && threads > 0 && threads <= kMostThreads;
}

inline cudaError_t add_launch(dim3 grid, dim3 block, size_t shared_bytes,
                              std::function<void()> kernel, bool is_dependent) {
  if (!is_possible(grid, block)) return cudaErrorInvalidConfiguration;
  launches.add(Grid(grid, block, shared_bytes, std::move(kernel), is_dependent));
  return failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace vllm_fork::emulation
