// Launchers of what is done with rows of logits: plain pointers and sizes, nothing of torch.
#pragma once

#include <cstdint>

#include "cuda/primitives/runtime.h"
#include "portable/number_formats.h"

namespace vllm_fork {

struct LogitRows {
  const void* start;
  Format format;
  int64_t rows;
  int64_t stride;
  int64_t count;  // of a row, below 2^19
};

// Blocks of threads that share a row. No bit of a result depends on their number.
struct RowParts {
  int64_t count;  // of each row, 1 to 256
  void* memory;   // [rows, 2, count] words of 64 bits
};

// How many share a row, so that few rows occupy a GPU with so many multiprocessors.
int64_t choose_row_parts(const LogitRows& logits, int64_t multiprocessors);

// result float [rows, count].
cudaError_t launch_portable_log_softmax(const LogitRows& logits, const RowParts& parts,
                                        float* result, cudaStream_t stream);

// result [rows].
cudaError_t launch_portable_argmax(const LogitRows& logits, const RowParts& parts, int64_t* result,
                                   cudaStream_t stream);

// The memory that top-k needs for a row, in 64-bit words; 0 if a block's own suffices.
int64_t top_k_words(int64_t k);

// values, indices [rows, k]; memory [rows, top_k_words(k)].
cudaError_t launch_portable_top_k(const LogitRows& logits, int64_t k, float* values,
                                  int64_t* indices, uint64_t* memory, cudaStream_t stream);

// A number for each row.
struct Restrictions {
  const float* temperatures;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
};

// result float [rows, count]. A row with a temperature that is negative or not finite, or with
// another number outside of 0..1, becomes NaN.
cudaError_t launch_portable_filter(const LogitRows& logits, const Restrictions& restrictions,
                                   float* result, cudaStream_t stream);

// result [rows].
cudaError_t launch_portable_draw(const LogitRows& logits, const RowParts& parts,
                                 const int64_t* seeds, const int64_t* positions, int64_t* result,
                                 cudaStream_t stream);

}  // namespace vllm_fork
