// Attention in prompts, in 16 bits, in the order in which PyTorch and MKL add.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vllm_fork {

// PyTorch's kernel for CPUs (FlashAttentionKernel.cpp, cpu_flash_attention) takes 512 keys and up to
// 256 queries at a time, multiplies by MKL's gemm_bf16bf16f32 or gemm_f16f16f32, and rounds weights to
// 16 bits between. On CPUs whose instructions for these MKL does not use, MKL's products of at least four
// queries with at least twelve keys are these, which was found out by comparing them:
//
//   scores   one column after the other
//   values   one token after the other, in blocks (`block_of`), whose sums are added to what is there
//
// Products of two such numbers are exact in float32, so whether they are fused does not matter.
constexpr int64_t kPromptKeys = 512;
constexpr int64_t kPromptRows = 8;       // of queries, at a time
constexpr int64_t kPromptColumns = 16;   // heads have a multiple of so many
constexpr int64_t kPromptHeadSize = 192;  // at most; MKL adds more columns in blocks

// Tokens of a block, of `count` in which values are added.
inline int64_t block_of(int64_t count) {
  constexpr int64_t kMost = 192;
  if (count <= kMost) return count;
  return count < 2 * kMost ? count / 2 : kMost;
}

// Whether a prompt of so many tokens is multiplied in that order.
inline bool has_prompt_order(int64_t length) {
  constexpr int64_t kLeastKeys = 12, kLeastQueries = 4;
  const int64_t queries = length >= 768 ? 256 : length >= 192 ? 64 : 32;  // PyTorch's block
  const auto reaches = [length](int64_t block, int64_t least) {
    return length % block == 0 || length % block >= least;
  };
  return length >= kLeastKeys && reaches(kPromptKeys, kLeastKeys) && reaches(queries, kLeastQueries);
}

// Queries of one prompt, of the heads that share keys and values.
//
//   query    of token t and head h at query + t * query_token + h * query_head, the bits of bfloat16 or
//            float16
//   keys     of all `length` tokens of the prompt, [size] each; values likewise
//   first    of the tokens whose queries are meant, and the one behind the last
//   scratch  prompt_scratch() floats
//   out      [size] of token t and head h at out + t * out_token + h * size
struct PromptAttention {
  const uint16_t* query;
  int64_t query_token, query_head;
  const uint16_t* const* keys;
  const uint16_t* const* values;
  int64_t heads, size, length, first, last;
  float scale;
  float* scratch;
  uint16_t* out;
  int64_t out_token;
  bool is_float16;

  int64_t rows() const { return last - first / kPromptRows * kPromptRows + kPromptRows; }
};

// Of heads of a size, with so many rows of queries (PromptAttention::rows).
inline int64_t prompt_scratch(int64_t heads, int64_t size, int64_t rows) {
  return (2 * kPromptKeys + kPromptColumns) * size + kPromptRows * (size + kPromptKeys) + heads * rows * size;
}

#if defined(VLLM_FORK_X86)
// Compiled with its own instruction set: call it only after asking the CPU (see isa.h).
void prompt_attention_avx512(const PromptAttention&);
#endif

}  // namespace vllm_fork
