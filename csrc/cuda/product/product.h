// Launchers of the CUDA kernels of the portable product: plain pointers and sizes, nothing of torch.
// What they launch is queued on a stream; none waits for it, and none takes memory of its own.
#pragma once

#include <cstdint>

#include "cuda/primitives/runtime.h"
#include "cuda/primitives/tensor_cores.h"
#include "cuda/product/digit_target.h"
#include "portable/product_arguments.h"
#include "portable/product_layout.h"

namespace vllm_fork {

// What of a GPU decides how work is shared out. No bit of the result depends on it.
struct Multiprocessors {
  int64_t count;
  int64_t shared_bytes;  // of each
  TensorCores cores;
  int64_t splits;        // of the segments, at most; 0 to choose
};

// Where sums go.
struct ProductResult {
  void* data;  // [rows, outputs], contiguous
  Format format;
  const void* bias;  // [outputs]; null for none
  Format bias_format;
};

// Whether the library has code for the current GPU that multiplies with wgmma. A Hopper whose code was
// compiled for sm_90, or from PTX of an older generation, has none: only sm_90a has these
// instructions.
bool has_warpgroup_products();

// The bytes of a packed weight, as digit_tiles.cuh lays it out.
int64_t packed_weight_bytes(const ProductShape& shape);

// The bytes of memory that a product takes besides its arguments, at a multiple of 16.
int64_t product_workspace_bytes(const ProductShape& shape, int64_t rows,
                                const Multiprocessors& gpu);

cudaError_t launch_portable_product(const ProductShape& shape, const ProductRows& x,
                                    const uint8_t* packed, uint8_t* workspace,
                                    const ProductResult& result, const Multiprocessors& gpu,
                                    cudaStream_t stream);

// More rows are multiplied in parts.
inline constexpr int64_t kMostRowsAtOnce = 1536;

// Where another kernel puts the digits of some rows, at most kMostRowsAtOnce, in the workspace of
// their product.
DigitTarget digit_target(const ProductShape& shape, int64_t rows, const int8_t* equalised,
                         uint8_t* workspace, const Multiprocessors& gpu);

// The product of these rows; their digits stay, and can be multiplied with another weight.
cudaError_t launch_product_of_digits(const ProductShape& shape, int64_t rows,
                                     const uint8_t* packed, uint8_t* workspace,
                                     const ProductResult& result, const Multiprocessors& gpu,
                                     cudaStream_t stream);

// partials [parts, rows, outputs], contiguous; 1, 2, 4 or 8 parts.
cudaError_t launch_sum_partials(const float* partials, int64_t parts, int64_t rows,
                                int64_t outputs, const ProductResult& result, cudaStream_t stream);

// `refused` becomes the least output with a number that is out of range; it must be 2^64 - 1 before.
cudaError_t launch_pack_weight(const ProductShape& shape, const WeightNumbers& weight,
                               const int8_t* equalised, uint8_t* packed,
                               unsigned long long* refused, cudaStream_t stream);

cudaError_t launch_unpack_weight(const ProductShape& shape, const uint8_t* packed,
                                 const int8_t* equalised, float* weight, cudaStream_t stream);

// Adds to the statistics, [inputs].
cudaError_t launch_channel_statistics(const WeightNumbers& weight, int64_t outputs, int64_t inputs,
                                      unsigned long long* statistics, cudaStream_t stream);

}  // namespace vllm_fork
