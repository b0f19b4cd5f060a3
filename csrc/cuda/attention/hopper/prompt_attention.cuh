// Attention for many queries, on Hopper's warpgroups: the fast way of prompts, where attention_block.cuh
// is the simple one. Both give the bits of docs/numerics/attention.md.
//
// A block of threads attends for 128 rows, queries of a sequence that share a head of keys: two
// warpgroups for 64 rows each. A third one brings them the blocks of 64 tokens. A warp has 16 rows
// and all tokens of a block: its weights never leave its registers.
#pragma once

#include "cuda/attention/hopper/prompt_attention.h"
#include "cuda/attention/hopper/prompt_group.cuh"
#include "cuda/attention/hopper/prompt_loader.cuh"
#include "cuda/primitives/dependent_launch.cuh"

namespace vllm_fork {

// Where there is nothing to multiply with, too few for any launch, as in multiply_rows.cuh.
inline constexpr int kMostPromptThreads = kHasWarpgroups ? kPromptThreads : 1;

// Of 64 Ki registers of a multiprocessor, the threads that load need few.
constexpr int kRegistersToLoad = 56;
constexpr int kRegistersToAttend = 224;
static_assert(kRegistersToLoad * kWarpgroup + kRegistersToAttend * kAttending <= 64 * 1024);

// Makes the integers of all rows, by all threads of the block.
template <int kSize>
__device__ __forceinline__ void prepare_queries(const PagedAttention& task,
                                                const QueryPiece<kPromptRows>& piece,
                                                PromptMemory<kSize>& memory) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int row = warp; row < kPromptRows; row += kPromptThreads / kWarp) {
    auto& digits = memory.queries[row / kGroupRows];
    prepare_query(task, piece, row, memory.facts[row], [&](int word, const DigitWords& own) {
      if (4 * word >= kSize) return;
      const int chunk = 4 * word / kMatrixBytes;
      const int byte = 4 * word % kMatrixBytes;
      *reinterpret_cast<uint32_t*>(digits[0].at(row % kGroupRows, chunk) + byte) = own.upper;
      *reinterpret_cast<uint32_t*>(digits[1].at(row % kGroupRows, chunk) + byte) = own.lower;
    });
  }
}

template <int kSize, bool kIsPlain>
__device__ __forceinline__ void attend_for_prompt(const PagedAttention& task) {
  wait_for_earlier_kernels();
  // The last pieces see most tokens, so they come first.
  const int index = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  auto& memory = *dynamic_shared<PromptMemory<kSize>>();
  {
    const QueryPiece<kPromptRows> piece(task, index);
    if (!piece.has(0)) return;
    prepare_queries(task, piece, memory);
  }
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kPromptStages; ++stage) {
      memory.is_full[stage].begin(kWarpgroup);
      memory.is_empty[stage].begin(kAttending / kWarp);
    }
  }
  show_to_products();
  __syncthreads();
  // Each finds the piece again, when it has the registers for it.
  if (threadIdx.x >= kAttending) {
    keep_registers<kRegistersToLoad>();
    const QueryPiece<kPromptRows> piece(task, index);
    const SeenTokens seen = piece.seen_by_any(0, kPromptRows, task);
    PromptLoader<kSize>(task, piece, seen).load_all(memory);
  } else {
    take_registers<kRegistersToAttend>();
    const QueryPiece<kPromptRows> piece(task, index);
    const SeenTokens seen = piece.seen_by_any(0, kPromptRows, task);
    PromptGroup<kSize, kIsPlain>(task, piece, memory).attend_to_all(seen);
  }
}

template <int kSize, bool kIsPlain>
__global__ void __launch_bounds__(kMostPromptThreads, 1)
    prompt_attention_kernel(PagedAttention task) {
  if constexpr (kHasWarpgroups) {
    attend_for_prompt<kSize, kIsPlain>(task);
  } else {
    stop_kernel();
  }
}

// --- launchers ---------------------------------------------------------------------------------

inline int64_t num_prompt_pieces(const PagedAttention& task) {
  return task.queries * (task.heads / task.key_heads) / kPromptRows + task.sequences;
}

// The files prompt_attention*.cu have one kernel each, which takes long to compile.
template <int kSize, bool kIsPlain>
cudaError_t launch_prompt_kernel(const PagedAttention& task, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned int>(num_prompt_pieces(task)),
                  static_cast<unsigned int>(task.key_heads));
  return launch_dependent(grid, kPromptThreads, sizeof(PromptMemory<kSize>), stream,
                          prompt_attention_kernel<kSize, kIsPlain>, task);
}

template <int kSize>
cudaError_t launch_prompts(const PagedAttention& task, cudaStream_t stream) {
  const bool is_plain = task.soft_cap == 0.0f && task.slopes == nullptr;
  return is_plain ? launch_prompt_kernel<kSize, true>(task, stream)
                  : launch_prompt_kernel<kSize, false>(task, stream);
}

}  // namespace vllm_fork
