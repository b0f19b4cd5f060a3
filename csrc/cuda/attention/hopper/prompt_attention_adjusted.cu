#include "cuda/attention/hopper/prompt_attention.cuh"

template cudaError_t vllm_fork::launch_prompt_kernel<128, false>(const PagedAttention&, cudaStream_t);
