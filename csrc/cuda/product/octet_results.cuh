// From sums of eight outputs side by side to numbers of the result: docs/numerics/products.md,
// section 6, steps 2 to 4.
//
// Blocks of threads that share a tile leave their sums in global memory, and the last of them adds
// all. It asks for all that it adds before it adds the first: each read takes as long as a product
// of many channels.
#pragma once

#include "cuda/product/octets.cuh"
#include "cuda/product/product_result.cuh"
#include "cuda/product/tile_shape.cuh"
#include "portable/product.h"

namespace vllm_fork {

// Where eight results are in [rows, outputs], and how many of them there are.
struct OctetPlace {
  int64_t index;
  int64_t output;
  int count;

  __device__ __forceinline__ OctetPlace(const ProductWork& work, int64_t row, int64_t first_output)
      : index(row * work.outputs + first_output),
        output(first_output),
        count(static_cast<int>(least(work.outputs - first_output, int64_t{kOctet}))) {}
};

__device__ __forceinline__ void read_bias(const ProductResult& result, const OctetPlace& at,
                                          float (&bias)[kOctet]) {
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const bool is_there = result.bias != nullptr && i < at.count;
    bias[i] = is_there ? normal_bias(read_number(result.bias, result.bias_format, at.output + i))
                       : 0.0f;
  }
}

template <typename Number>
__device__ __forceinline__ void write_as(const ProductResult& result, const OctetPlace& at,
                                         const float (&octet)[kOctet]) {
  Number numbers[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) numbers[i] = narrow<Number>(octet[i]);
  write_octet(static_cast<Number*>(result.data) + at.index, at.count, numbers);
}

// Without a bias, that +0 is added changes nothing: no sum is -0.
__device__ __forceinline__ void write_results(const ProductResult& result, const OctetPlace& at,
                                              const float (&bias)[kOctet],
                                              float (&octet)[kOctet]) {
#pragma unroll
  for (int i = 0; i < kOctet; ++i) octet[i] = octet[i] + bias[i];
  switch (result.format) {
    case Format::kFloat32: return write_as<float>(result, at, octet);
    case Format::kBfloat16: return write_as<Bfloat16>(result, at, octet);
    case Format::kFloat16: return write_as<Float16>(result, at, octet);
  }
}

// Leaves the sums of a split's segments.
__device__ __forceinline__ void write_partial(const ProductWork& work, int split,
                                              const OctetPlace& at,
                                              const float (&octet)[kOctet]) {
  write_octet(work.partials + split * (work.rows * work.outputs) + at.index, at.count, octet);
}

template <int kSplits>
__device__ __forceinline__ void add_partials_of(const ProductWork& work, const OctetPlace& at,
                                                float (&octet)[kOctet]) {
  float partials[kSplits][kOctet];
  read_octets(work.partials + at.index, work.rows * work.outputs, at.count, partials);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) octet[i] = sum_of_halves<kSplits>(&partials[0][i], kOctet);
}

// The sums of all segments, of those of all splits.
__device__ __forceinline__ void add_partials(const ProductWork& work, const OctetPlace& at,
                                             float (&octet)[kOctet]) {
  switch (work.splits) {
    case 2: return add_partials_of<2>(work, at, octet);
    case 4: return add_partials_of<4>(work, at, octet);
    default: return add_partials_of<8>(work, at, octet);
  }
}

}  // namespace vllm_fork
