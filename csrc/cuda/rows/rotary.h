// Launchers of rotary embeddings and their tables: plain pointers and sizes, nothing of torch.
#pragma once

#include <cstdint>

#include "cuda/primitives/runtime.h"
#include "portable/number_formats.h"

namespace vllm_fork {

// table [positions, 2 * half]: cosines, then sines. A frequency that is negative, or whose largest
// angle is above 2^21, has entries of NaN.
cudaError_t launch_portable_rotary_table(const float* frequencies, float* table,
                                         int64_t positions, int64_t half, double scale,
                                         cudaStream_t stream);

struct RotationTask {
  void* x;  // [rows, heads, ...], rotated in place
  Format format;
  int64_t rows;
  int64_t heads;
  int64_t row_stride;
  int64_t head_stride;
  const int64_t* positions;  // [rows]
  const float* table;        // [table_rows, 2 * half]
  int64_t table_rows;
  int64_t half;
  bool is_interleaved;
};

// The heads of a position that the table does not have become NaN.
cudaError_t launch_portable_rotate(const RotationTask& task, cudaStream_t stream);

}  // namespace vllm_fork
