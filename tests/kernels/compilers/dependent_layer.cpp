// Layers of a norm, a product, a gated activation and another product, in one stream: built as a
// library by test_cuda_dependent_launch.py. All digits and counters are in the same memory.
#include "cuda/product/product.cu"
#include "cuda/rows/functions.cuh"
#include "cuda/rows/norm.cuh"
#include "../emulated_launch.h"

using namespace vllm_fork;

namespace {

constexpr Format kFormat = Format::kFloat32;

struct Layer {
  int64_t rows;
  int64_t size;
  int64_t inner;
  int64_t segments[2];
  Multiprocessors gpu;
  const uint8_t* packed[2];
  uint8_t* workspace;
  float* x;
  float* normed;
  float* gates;
  float* activations;

  ProductShape shape(int product) const {
    return product == 0 ? ProductShape{2 * inner, size, segments[0]}
                        : ProductShape{size, inner, segments[1]};
  }

  DigitTarget target(int product) const {
    return digit_target(shape(product), rows, nullptr, workspace, gpu);
  }

  cudaError_t multiply(int product, float* result) const {
    return launch_product_of_digits(shape(product), rows, packed[product], workspace,
                                    {result, kFormat, nullptr, kFormat}, gpu, nullptr);
  }

  cudaError_t launch_all() const {
    const NormTask norm{x, nullptr, normed, kFormat, rows, size, {}, {}, 0.0f, 1e-5f, false};
    cudaError_t error = launch_portable_norm_digits(norm, target(0), nullptr);
    if (error == cudaSuccess) error = multiply(0, gates);
    if (error != cudaSuccess) return error;
    error = launch_portable_gated_digits(gates, activations, kFormat, Function::kSilu, target(1),
                                         nullptr);
    return error == cudaSuccess ? multiply(1, x) : error;
  }
};

}  // namespace

extern "C" const char* run_layers(uint64_t seed, int64_t times, int64_t rows, int64_t size,
                                  int64_t inner, int64_t cores, int64_t splits,
                                  const int64_t* segments, const uint8_t* first,
                                  const uint8_t* second, uint8_t* workspace, float* x,
                                  float* normed, float* gates, float* activations) {
  const Multiprocessors gpu{2, emulation::kMostSharedBytes, static_cast<TensorCores>(cores),
                            splits};
  const Layer layer{rows,      size, inner,  {segments[0], segments[1]}, gpu, {first, second},
                    workspace, x,    normed, gates,                      activations};
  return emulated(seed, [=] {
    cudaError_t error = cudaSuccess;
    for (int64_t i = 0; i < times && error == cudaSuccess; ++i) error = layer.launch_all();
    return error;
  });
}
