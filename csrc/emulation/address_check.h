// Wrong addresses that kernels use.
#pragma once

#include "emulation/block_scheduler.h"

namespace vllm_fork::emulation {

// While there is one, an address that the process does not have is a failure of the kernel.
class AddressCheck {
 public:
  AddressCheck() {
    static const auto memory = std::make_unique<std::byte[]>(kStackBytes);
    stack_t stack{};
    stack.ss_sp = memory.get();
    stack.ss_size = kStackBytes;
    sigaltstack(&stack, &saved_stack_);
    struct sigaction action{};
    action.sa_handler = [](int) { Block::current_block->fail("A thread uses a wrong address."); };
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &action, &saved_actions_[i]);
  }
  ~AddressCheck() {
    for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &saved_actions_[i], nullptr);
    sigaltstack(&saved_stack_, nullptr);
  }
  AddressCheck(const AddressCheck&) = delete;
  AddressCheck& operator=(const AddressCheck&) = delete;

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS};

  stack_t saved_stack_;
  struct sigaction saved_actions_[2];
};

}  // namespace vllm_fork::emulation
