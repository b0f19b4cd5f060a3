// CUDA's runtime: NVIDIA's, or where VLLM_FORK_EMULATE_CUDA is defined, the one of tests without a
// GPU.
#pragma once

#if defined(VLLM_FORK_EMULATE_CUDA)
#include "emulation/cuda_on_host.h"
#else
#include <cuda_runtime.h>
#endif
