// The kernels of attention and its cache, on the CPU: built as a library by emulated_ops.py.
#include "cuda/attention/attention.cuh"
#include "cuda/attention/cache.cuh"
#include "cuda/attention/hopper/prompt_attention.cu"
#include "cuda/attention/hopper/prompt_attention_64.cu"
#include "cuda/attention/hopper/prompt_attention_adjusted.cu"
#include "cuda/attention/hopper/prompt_attention_adjusted_64.cu"
#include "../emulated_launch.h"

using namespace vllm_fork;

extern "C" const char* run_append(uint64_t seed, const AppendTask* task) {
  return emulated(seed, [=] { return launch_portable_append(*task, nullptr); });
}

extern "C" int64_t splits_of(const PagedAttention* task) { return attention_splits(*task); }

extern "C" int64_t part_floats_of(const PagedAttention* task, int64_t splits) {
  return attention_part_floats(*task, splits);
}

extern "C" uint64_t blocks_run() { return emulation::num_blocks; }

extern "C" uint64_t waits_of_threads() { return emulation::num_waits; }

extern "C" const char* run_attention(uint64_t seed, const PagedAttention* task, int64_t splits,
                                     float* parts) {
  emulation::num_blocks = emulation::num_waits = 0;
  return emulated(seed, [=] { return launch_portable_attention(*task, splits, parts, nullptr); });
}

extern "C" bool is_launched_as_prompts(const PagedAttention* task) {
  return is_for_warpgroups(*task);
}

// Whatever the shape, as if there were enough rows of it.
extern "C" const char* run_prompt_attention(uint64_t seed, const PagedAttention* task) {
  return emulated(seed, [=] { return launch_prompt_attention(*task, nullptr); });
}
