#include "cuda/attention/hopper/prompt_attention.cuh"

template cudaError_t vllm_fork::launch_prompt_kernel<64, true>(const PagedAttention&, cudaStream_t);
