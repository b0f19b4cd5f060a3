// What the host asks of the CUDA runtime once and keeps, of several GPUs.
#pragma once

#include <map>
#include <mutex>

namespace vllm_fork {

// Facts by what they are of: a GPU's number, or one and a kernel. Any thread may ask.
template <typename Key, typename Fact>
class KnownFacts {
 public:
  // What use(fact) returns, which no other thread calls meanwhile; a fact is Fact() until it is
  // changed there.
  template <typename Use>
  auto with(const Key& key, const Use& use) {
    const std::lock_guard<std::mutex> alone(mutex_);
    return use(facts_[key]);
  }

 private:
  std::mutex mutex_;
  std::map<Key, Fact> facts_;
};

}  // namespace vllm_fork
