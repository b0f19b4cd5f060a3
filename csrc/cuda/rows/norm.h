// The launcher of RMSNorm and LayerNorm: plain pointers and sizes, nothing of torch.
#pragma once

#include <cstdint>

#include "cuda/primitives/runtime.h"
#include "cuda/product/digit_target.h"
#include "portable/number_formats.h"

namespace vllm_fork {

// A row's parameters of any format, or null for ones and zeros.
struct NormParameter {
  const void* start;
  Format format;
};

struct NormTask {
  const void* x;   // [rows, size]
  void* residual;  // like x, or null: becomes x + residual, which is what is normalised
  void* result;    // like x
  Format format;   // of all three
  int64_t rows;
  int64_t size;
  NormParameter weight;
  NormParameter bias;
  float weight_offset;
  float epsilon;
  bool is_centred;  // LayerNorm, else RMSNorm
};

cudaError_t launch_portable_norm(const NormTask& task, cudaStream_t stream);

// The same, and the digits of the results for a product.
cudaError_t launch_portable_norm_digits(const NormTask& task, const DigitTarget& target,
                                        cudaStream_t stream);

}  // namespace vllm_fork
