#include "cuda/product/product.cuh"

#include "cuda/primitives/numbers.cuh"
#include "cuda/product/channel_statistics.cuh"
#include "cuda/product/pack_weight.cuh"
#include "cuda/product/sum_partials.cuh"

namespace vllm_fork {
int64_t packed_weight_bytes(const ProductShape& shape) { return WeightTiles(shape).bytes(); }

bool has_warpgroup_products() { return can_multiply_by_warpgroups<WarpgroupTileOf128>(); }

int64_t product_workspace_bytes(const ProductShape& shape, int64_t rows,
                                const Multiprocessors& gpu) {
  return product_workspace(shape, rows, gpu);
}

cudaError_t launch_portable_product(const ProductShape& shape, const ProductRows& x,
                                    const uint8_t* packed, uint8_t* workspace,
                                    const ProductResult& result, const Multiprocessors& gpu,
                                    cudaStream_t stream) {
  if (x.rows == 0) return cudaSuccess;
  return multiply_rows(shape, x, packed, workspace, result, gpu, stream);
}

DigitTarget digit_target(const ProductShape& shape, int64_t rows, const int8_t* equalised,
                         uint8_t* workspace, const Multiprocessors& gpu) {
  const ProductPlan plan = plan_on(shape, rows, gpu);
  return {shape, rows, equalised, workspace, plan.counters_in(workspace), plan.counters};
}

cudaError_t launch_product_of_digits(const ProductShape& shape, int64_t rows,
                                     const uint8_t* packed, uint8_t* workspace,
                                     const ProductResult& result, const Multiprocessors& gpu,
                                     cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  return multiply_digits(shape, rows, packed, workspace, result, gpu, stream);
}

cudaError_t launch_sum_partials(const float* partials, int64_t parts, int64_t rows,
                                int64_t outputs, const ProductResult& result,
                                cudaStream_t stream) {
  if (rows * outputs == 0) return cudaSuccess;
  return sum_all_partials(partials, parts, rows, outputs, result, stream);
}

cudaError_t launch_pack_weight(const ProductShape& shape, const WeightNumbers& weight,
                               const int8_t* equalised, uint8_t* packed,
                               unsigned long long* refused, cudaStream_t stream) {
  return with_number(weight.format, [&](auto number) {
    const auto* numbers = static_cast<const decltype(number)*>(weight.data);
    return pack_weight_tiles(shape, numbers, equalised, packed, refused, stream);
  });
}

cudaError_t launch_unpack_weight(const ProductShape& shape, const uint8_t* packed,
                                 const int8_t* equalised, float* weight, cudaStream_t stream) {
  return unpack_weight_tiles(shape, packed, equalised, weight, stream);
}

cudaError_t launch_channel_statistics(const WeightNumbers& weight, int64_t outputs, int64_t inputs,
                                      unsigned long long* statistics, cudaStream_t stream) {
  return with_number(weight.format, [&](auto number) {
    const auto* numbers = static_cast<const decltype(number)*>(weight.data);
    return add_statistics(numbers, outputs, inputs, statistics, stream);
  });
}

}  // namespace vllm_fork
