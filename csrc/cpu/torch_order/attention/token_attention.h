// Attention of single tokens in the order in which PyTorch and MKL add.
#pragma once

#include <cstdint>

#include "cpu/torch_order/single_row/ordered_products.h"

namespace vllm_fork {

// PyTorch's kernel for CPUs (FlashAttentionKernel.cpp, cpu_flash_attention) takes 512 keys at a
// time, and rounds weights to the dtype between. In 16 bits it multiplies by MKL's gemm_bf16bf16f32 or
// gemm_f16f16f32. On CPUs whose instructions for these MKL does not use, products of MKL with a single
// column are these, which was found out by products of 1, 2^60 and -2^60 (FPRev, Xie et al., 2024):
//
//   scores   element i belongs to sum i % 4; (sum 0 + sum 2) + (sum 1 + sum 3)
//   values   in bfloat16 four tokens at a time, (0 + 2) + (1 + 3), added to what is there; up to three
//            that are left over one by one, the last one first; in float16 one after the other, but
//            for the first columns (see columns_apart and values_avx512.h)
//
// In float16 the last one to three keys, if their number is no multiple of four, have eight sums,
// which are folded by halves. Products of two numbers of 16 bits are exact in float32, so whether
// they are fused does not matter. In float32 the orders are given: see FloatOrder.
constexpr int64_t kTokenKeys = 512;
constexpr int64_t kTokenColumns = 16;  // heads have a multiple of so many
constexpr int64_t kTokenHeads = 4;     // at a time

// MKL adds the columns of values before the first one whose sum lies at a multiple of 16 bytes in
// another order. PyTorch writes the sums behind the scores with a block of keys and two more numbers,
// and those of each thread behind those of the one before.
//
//   thread  of PyTorch's, that computes the head
//   length  of the text
inline int64_t columns_apart(int64_t thread, int64_t length) {
  const int64_t keys = length < kTokenKeys ? length : kTokenKeys;
  return (4 - (thread + 1) * (keys + 2) % 4) % 4;
}

// The heads of one request that share keys and values.
//
//   query            [heads, size]; Bits is uint16_t for bfloat16 and float16, and float for float32
//   keys             of `length` tokens, [size] each; values likewise
//   scratch          in 16 bits kTokenHeads * (size + kTokenKeys) floats, in float32
//                    float_scratch()
//   out              [heads, size]
//   first_head       of all heads of the request
//   heads_of_thread  that PyTorch gives to each of its threads
template <typename Bits>
struct TokenAttentionOf {
  const Bits* query;
  const Bits* const* keys;
  const Bits* const* values;
  int64_t heads, size, length;
  float scale;
  float* scratch;
  Bits* out;
  int64_t first_head, heads_of_thread;

  int64_t columns_apart_of(int64_t head) const {
    return columns_apart((first_head + head) / heads_of_thread, length);
  }
};

struct TokenAttention : TokenAttentionOf<uint16_t> {
  bool is_float16;
};

// In float32 the scores of four keys at a time have one order, and those of up to three keys that are
// left over have others: rest[n] if there are n. Values are added one token after the other.
struct FloatOrder {
  struct Steps {
    const SumStep* steps;
    int64_t count;
    float zero;
  };
  Steps keys, rest[4][3];
  bool is_fused;  // products of values with weights, with their additions
  bool has_columns_apart;
};

struct FloatTokenAttention : TokenAttentionOf<float> {
  const FloatOrder* order;
};

inline int64_t float_scratch(int64_t heads, int64_t size) {
  return kTokenKeys * (size + 2 * heads) + heads * size;
}

#if defined(VLLM_FORK_X86)
// Compiled with their own instruction set: call them only after asking the CPU (see isa.h).
void token_attention_avx512(const TokenAttention&);
void float_token_attention_avx512(const FloatTokenAttention&);
#endif

}  // namespace vllm_fork
