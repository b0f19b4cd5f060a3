#include "cuda/attention/hopper/prompt_attention.cuh"

namespace vllm_fork {

template cudaError_t launch_prompt_kernel<128, true>(const PagedAttention&, cudaStream_t);
extern template cudaError_t launch_prompt_kernel<128, false>(const PagedAttention&, cudaStream_t);
extern template cudaError_t launch_prompt_kernel<64, true>(const PagedAttention&, cudaStream_t);
extern template cudaError_t launch_prompt_kernel<64, false>(const PagedAttention&, cudaStream_t);

constexpr int64_t kLargestPromptHead = 128;

bool are_prompts(const PagedAttention& task) {
  constexpr int64_t kEnoughBlocks = 64;
  const int64_t rows = task.queries * (task.heads / task.key_heads);
  return task.cache.head_size <= kLargestPromptHead && rows >= kGroupRows * task.sequences &&
         num_prompt_pieces(task) * task.key_heads >= kEnoughBlocks;
}

cudaError_t launch_prompt_attention(const PagedAttention& task, cudaStream_t stream) {
  if (task.cache.head_size > kLargestPromptHead) return cudaErrorInvalidValue;
  return task.cache.head_size <= 64 ? launch_prompts<64>(task, stream)
                                    : launch_prompts<128>(task, stream);
}

}  // namespace vllm_fork
