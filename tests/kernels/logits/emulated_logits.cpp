// The kernels on logits, on the CPU: built as a library by emulated_ops.py.
#include "cuda/logits/logits.cuh"
#include "../emulated_launch.h"

using namespace vllm_fork;

extern "C" int64_t launches_of_last_run() { return emulation::num_launches; }

extern "C" int64_t parts_of_rows(const LogitRows* logits, int64_t multiprocessors) {
  return choose_row_parts(*logits, multiprocessors);
}

extern "C" const char* run_log_softmax(uint64_t seed, const LogitRows* logits,
                                       const RowParts* parts, float* result) {
  return emulated(seed,
                  [=] { return launch_portable_log_softmax(*logits, *parts, result, nullptr); });
}

extern "C" const char* run_argmax(uint64_t seed, const LogitRows* logits, const RowParts* parts,
                                  int64_t* result) {
  return emulated(seed, [=] { return launch_portable_argmax(*logits, *parts, result, nullptr); });
}

extern "C" int64_t words_of_top_k(int64_t k) { return top_k_words(k); }

extern "C" int64_t words_of_selection() { return selection_words(); }

extern "C" const char* run_top_k(uint64_t seed, const LogitRows* logits, const RowParts* parts,
                                 int64_t k, float* values, int64_t* indices, uint64_t* memory,
                                 void* selections) {
  return emulated(seed, [=] {
    return launch_portable_top_k(*logits, *parts, k, values, indices, memory, selections,
                                 nullptr);
  });
}

extern "C" const char* run_filter(uint64_t seed, const LogitRows* logits, const RowParts* parts,
                                  const Restrictions* restrictions, float* result,
                                  void* selections) {
  return emulated(seed, [=] {
    return launch_portable_filter(*logits, *parts, *restrictions, result, selections, nullptr);
  });
}

extern "C" const char* run_draw(uint64_t seed, const LogitRows* logits, const RowParts* parts,
                                const int64_t* seeds, const int64_t* positions, int64_t* result) {
  return emulated(seed, [=] {
    return launch_portable_draw(*logits, *parts, seeds, positions, result, nullptr);
  });
}
