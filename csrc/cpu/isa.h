// Which instruction set the CPU kernels use: chosen once, at run time.
#pragma once

#include "cpu/logits/draw_row.h"
#include "cpu/logits/penalize_row.h"
#include "cpu/operations.h"
#include "cpu/portable/product/product.h"
#include "cpu/torch_order/single_row/ordered_products.h"
#include "cpu/torch_order/single_row/row_chains.h"
#include "cpu/torch_order/single_row/row_products.h"
#include "cpu/torch_order/attention/prompt_attention.h"
#include "cpu/torch_order/attention/token_attention.h"

namespace vllm_fork {

struct Isa {
  const char* name;  // "amx", "avx512vnni", "avx512", "avx2" or "scalar"
  bool (*is_supported)();
  PenalizeRow penalize_row;
  DrawRow draw_row;
  SkipNumbers skip_numbers;
  RowProducts row_products;  // null where it would be no faster than PyTorch, row by row
  const PortableOperations* operations;
  ChooseProductKernel product_kernel;
};

// The best instruction set of this CPU, or the one that VLLM_FORK_CPU_ISA names. The choice is
// made by the first call. Throws std::runtime_error if the name is unknown or the CPU lacks it.
const Isa& chosen_isa();

// Null without AVX512_BF16, which CPUs of several of the instruction sets above may have or lack.
RowChains chosen_row_chains();
FewRowChains chosen_few_row_chains();
TransposedChains chosen_transposed_chains();

// Null without AVX-512.
using MultiplyInOrder = void (*)(const OrderedProducts&);
MultiplyInOrder chosen_ordered_products();
using AttendFromToken = void (*)(const TokenAttention&);
AttendFromToken chosen_token_attention();
using AttendFromFloatToken = void (*)(const FloatTokenAttention&);
AttendFromFloatToken chosen_float_token_attention();
using AttendInPrompt = void (*)(const PromptAttention&);
AttendInPrompt chosen_prompt_attention();

}  // namespace vllm_fork
