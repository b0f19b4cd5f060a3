// A weight's digits in the order of digit_tiles.cuh, and the weight that they stand for.
#pragma once

#include "cuda/primitives/device.cuh"
#include "cuda/primitives/tickets.cuh"
#include "cuda/product/digit_tiles.cuh"
#include "cuda/product/octets.cuh"
#include "portable/number_types.h"
#include "portable/product.h"

namespace vllm_fork {

inline constexpr int kPackWarps = 8;

// What a warp packs or unpacks: one block of one output, outputs that the last group of panels
// lacks included.
struct OutputBlock {
  int64_t output;
  BlockPlace place;
  int lane;
  int octet;     // of the block, the lane's
  int channels;  // from the lane's first on that there are; may be below 0
  bool is_there;

  __device__ __forceinline__ OutputBlock(const ProductShape& shape, const StepCounts& counts,
                                         int64_t warp)
      : output(warp / counts.blocks()),
        place(shape, counts, static_cast<int>(warp % counts.blocks())),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        octet(lane),
        channels(place.channels - octet * kOctet),
        is_there(output < WeightTiles(shape).panels * kPanel) {}

  __device__ __forceinline__ int64_t channel() const { return place.channel + octet * kOctet; }

  // Where the lane's eight digits lie; only if the block has that step.
  __device__ __forceinline__ int64_t octet_at(const WeightTiles& tiles, int digit) const {
    return tiles.octet_at(output / kPanel, place.step + octet / kOctetsOfStep, digit,
                          octet % kOctetsOfStep, static_cast<int>(output % kPanel));
  }
  __device__ __forceinline__ bool has_step() const { return octet / kOctetsOfStep < place.steps; }

  __device__ __forceinline__ int64_t exponent_at(const WeightTiles& tiles) const {
    return tiles.exponents_at(output / kPanel, place.block) + output % kPanel;
  }
};

__device__ __forceinline__ int64_t warp_of_grid() {
  return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
}

// `refused` becomes the least output with a number out of range; it must be the greatest number
// before.
template <typename Number>
__global__ void __launch_bounds__(kPackWarps* kWarp)
    pack_weight_kernel(ProductShape shape, const Number* weight, const int8_t* equalised,
                       uint8_t* packed, unsigned long long* refused) {
  const WeightTiles tiles(shape);
  const OutputBlock block(shape, StepCounts(shape), warp_of_grid());
  if (!block.is_there) return;
  float values[kOctet] = {};
  if (block.output < shape.outputs) {
    read_values(weight + block.output * shape.inputs + block.channel(), block.channels, values);
    equalise<1>(equalised, block.channel(), block.channels, values);
  }
  const OctetDigits digits = split_octet<false>(values, kLeastWeightExponent);
  if (block.has_step()) {
    *reinterpret_cast<Words2*>(packed + block.octet_at(tiles, 0)) = digits.high;
    *reinterpret_cast<Words2*>(packed + block.octet_at(tiles, 1)) = digits.low;
  }
  if (block.lane != 0) return;
  const int32_t word = block_word(digits.exponent, 0, 0);
  packed[block.exponent_at(tiles)] = static_cast<uint8_t>(word);
  if (digits.exponent > kGreatestWeightExponent) {
    lower_atomically(refused, static_cast<unsigned long long>(block.output));
  }
}

__global__ void __launch_bounds__(kPackWarps* kWarp)
    unpack_weight_kernel(ProductShape shape, const uint8_t* packed, const int8_t* equalised,
                         float* weight) {
  const WeightTiles tiles(shape);
  const OutputBlock block(shape, StepCounts(shape), warp_of_grid());
  if (block.output >= shape.outputs) return;
  const int32_t exponent = packed[block.exponent_at(tiles)];
  float* target = weight + block.output * shape.inputs + block.channel();
  for (int i = 0; i < kOctet && i < block.channels; ++i) {
    const int high = static_cast<int8_t>(packed[block.octet_at(tiles, 0) + i]);
    const int low = static_cast<int8_t>(packed[block.octet_at(tiles, 1) + i]);
    const int own = equalised ? equalised[block.channel() + i] : 0;
    target[i] = static_cast<float>(256 * high + low) * power_of_two(exponent - 127 - 8 - own);
  }
}

inline dim3 pack_grid(int64_t outputs, const ProductShape& shape) {
  return dim3(static_cast<unsigned int>(divide_up(outputs * shape.blocks(), kPackWarps)));
}

template <typename Number>
cudaError_t pack_weight_tiles(const ProductShape& shape, const Number* weight,
                              const int8_t* equalised, uint8_t* packed,
                              unsigned long long* refused, cudaStream_t stream) {
  return launch(pack_grid(WeightTiles(shape).panels * kPanel, shape), dim3(kPackWarps * kWarp), 0,
                stream, pack_weight_kernel<Number>, shape, weight, equalised, packed, refused);
}

inline cudaError_t unpack_weight_tiles(const ProductShape& shape, const uint8_t* packed,
                                       const int8_t* equalised, float* weight,
                                       cudaStream_t stream) {
  return launch(pack_grid(shape.outputs, shape), dim3(kPackWarps * kWarp), 0, stream,
                unpack_weight_kernel, shape, packed, equalised, weight);
}

}  // namespace vllm_fork
