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

// How many share a row: so many that few rows occupy a GPU with so many multiprocessors, and that
// what one finds in its part fits its memory.
int64_t choose_row_parts(const LogitRows& logits, int64_t multiprocessors);

// result float [rows, count].
cudaError_t launch_portable_log_softmax(const LogitRows& logits, const RowParts& parts,
                                        float* result, cudaStream_t stream);

// result [rows].
cudaError_t launch_portable_argmax(const LogitRows& logits, const RowParts& parts, int64_t* result,
                                   cudaStream_t stream);

// The memory for the search of a row's last logit that stays, in 64-bit words. It begins as zeros.
int64_t selection_words();

// The memory in which the first k of a row are sorted, in 64-bit words.
int64_t top_k_words(int64_t k);

// values, indices [rows, k]; memory [rows, top_k_words(k)]; selections [rows, selection_words()].
cudaError_t launch_portable_top_k(const LogitRows& logits, const RowParts& parts, int64_t k,
                                  float* values, int64_t* indices, uint64_t* memory,
                                  void* selections, cudaStream_t stream);

// A number for each row.
struct Restrictions {
  const float* temperatures;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
};

// result float [rows, count]; selections [rows, selection_words()]. A row with a temperature that
// is negative or not finite, or with another number outside of 0..1, becomes NaN.
cudaError_t launch_portable_filter(const LogitRows& logits, const RowParts& parts,
                                   const Restrictions& restrictions, float* result,
                                   void* selections, cudaStream_t stream);

// result [rows].
cudaError_t launch_portable_draw(const LogitRows& logits, const RowParts& parts,
                                 const int64_t* seeds, const int64_t* positions, int64_t* result,
                                 cudaStream_t stream);

}  // namespace vllm_fork
