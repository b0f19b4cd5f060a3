// The launcher of attention for many queries of a sequence, on Hopper's warpgroups.
#pragma once

#include "cuda/attention/attention.h"

namespace vllm_fork {

// Whether a task is worth it: rows enough for its blocks of threads, and blocks enough for half of a
// GPU. From sizes alone, which a captured graph keeps.
bool are_prompts(const PagedAttention& task);

// The results of launch_portable_attention, for heads of up to 128 elements.
cudaError_t launch_prompt_attention(const PagedAttention& task, cudaStream_t stream);

}  // namespace vllm_fork
