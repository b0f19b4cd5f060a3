// Launchers of functions and gated activations: plain pointers and sizes, nothing of torch.
#pragma once

#include <cstdint>

#include "cuda/primitives/runtime.h"
#include "cuda/product/digit_target.h"
#include "portable/functions.h"
#include "portable/number_formats.h"

namespace vllm_fork {

// result[i] = function(x[i]) for i in [0, count).
cudaError_t launch_portable_map(const void* x, void* result, Format format, int64_t count,
                                Function function, cudaStream_t stream);

// x [rows, 2 * half], result [rows, half]: function(x[i, j]) * x[i, half + j].
cudaError_t launch_portable_gated(const void* x, void* result, Format format, int64_t rows,
                                  int64_t half, Function function, cudaStream_t stream);

// The same, and the digits of the results for a product: x [target.rows, target.shape.inputs] ...
cudaError_t launch_portable_map_digits(const void* x, void* result, Format format,
                                       Function function, const DigitTarget& target,
                                       cudaStream_t stream);

// ... and x [target.rows, 2 * target.shape.inputs].
cudaError_t launch_portable_gated_digits(const void* x, void* result, Format format,
                                         Function function, const DigitTarget& target,
                                         cudaStream_t stream);

}  // namespace vllm_fork
