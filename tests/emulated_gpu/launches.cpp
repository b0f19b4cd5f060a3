// What tests ask of the launches of the emulated operations.
#include "emulation/torch_on_host.h"

#include <string>

using namespace vllm_fork;

#define EXPORTED extern "C" __attribute__((visibility("default")))

// How many kernels there were.
EXPORTED int64_t emulated_launches() { return static_cast<int64_t>(emulation::num_launches); }

// From here on a kernel may begin while the one before still runs, until launches are finished.
EXPORTED void defer_launches() { emulation::launches.are_deferred = true; }

// Says what has gone wrong: nothing, most often.
EXPORTED const char* finish_launches() {
  static std::string sentence;
  emulation::launches.finish();
  emulation::launches.are_deferred = false;
  emulation::kept.clear();
  sentence = std::move(emulation::failure);
  emulation::failure.clear();
  return sentence.c_str();
}
