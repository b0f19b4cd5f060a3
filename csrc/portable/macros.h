// Decorations that let one header serve g++ and nvcc.
#pragma once

// Functions in portable/ are always inlined. Speed is one reason; the other is correctness of the
// CPU dispatch: an out-of-line inline function is a weak symbol, and the linker may keep the copy
// of the translation unit that was compiled for AVX-512, which a smaller CPU cannot run.
#if defined(__CUDACC__)
#define VLLM_FORK_INLINE __host__ __device__ __forceinline__
#else
#define VLLM_FORK_INLINE inline __attribute__((always_inline))
#endif
