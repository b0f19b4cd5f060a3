// How many kernels the emulated operations have launched.
#include "emulation/block_scheduler.h"

extern "C" __attribute__((visibility("default"))) int64_t emulated_launches() {
  return static_cast<int64_t>(vllm_fork::emulation::num_launches);
}
