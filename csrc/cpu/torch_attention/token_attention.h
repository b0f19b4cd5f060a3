// Attention of single bfloat16 tokens in the order in which PyTorch and MKL add.
#pragma once

#include <cstdint>

namespace vllm_fork {

// PyTorch's kernel for CPUs (FlashAttentionKernel.cpp, cpu_flash_attention) takes 512 keys at a
// time, multiplies by MKL's gemm_bf16bf16f32, and rounds weights to bfloat16 between. On CPUs whose
// bfloat16 instructions MKL does not use, products of MKL with a single column are these, which was
// found out by products of 1, 2^60 and -2^60 (FPRev, Xie et al., 2024):
//
//   scores   element i belongs to sum i % 4; (sum 0 + sum 2) + (sum 1 + sum 3)
//   values   four tokens at a time, (0 + 2) + (1 + 3), added to what is there; up to three that are
//            left over one by one, the last one first
//
// Products of two bfloat16 numbers are exact in float32, so whether they are fused does not matter.
constexpr int64_t kTokenKeys = 512;
constexpr int64_t kTokenColumns = 16;  // heads have a multiple of so many
constexpr int64_t kTokenHeads = 4;     // at a time

// The heads of one request that share keys and values.
//
//   query    [heads, size], the bits of bfloat16
//   keys     of `length` tokens, [size] each; values likewise
//   scratch  kTokenHeads * (size + kTokenKeys) floats
//   out      [heads, size]
struct TokenAttention {
  const uint16_t* query;
  const uint16_t* const* keys;
  const uint16_t* const* values;
  int64_t heads, size, length;
  float scale;
  float* scratch;
  uint16_t* out;
};

#if defined(VLLM_FORK_X86)
// Compiled with its own instruction set: call it only after asking the CPU (see isa.h).
void token_attention_avx512(const TokenAttention&);
#endif

}  // namespace vllm_fork
