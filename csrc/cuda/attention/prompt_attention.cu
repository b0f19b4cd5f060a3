#include "cuda/attention/prompt_attention.cuh"
