// Rows of activations to digits: docs/numerics/products.md, section 4.
//
// A warp makes the digits of one block of a row, each lane those of eight channels. A kernel that
// computes activations makes their digits itself, where it knows the product that takes them.
#pragma once

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/device.cuh"
#include "cuda/product/digit_target.h"
#include "cuda/product/digit_tiles.cuh"
#include "cuda/product/octets.cuh"
#include "portable/number_types.h"
#include "portable/product.h"

namespace vllm_fork {

// Writes the digits and the scale of a row's block, of which each lane has eight channels.
__device__ __forceinline__ void write_row_block(const DigitTarget& target, int64_t row,
                                                const BlockPlace& place,
                                                float (&values)[kOctet]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = lane * kOctet;
  equalise<-1>(target.equalised, place.channel + first, place.channels - first, values);
  const OctetDigits digits = split_octet<true>(values, kLeastRowExponent);
  const RowTiles layout(target.shape, target.rows);
  const int step = lane / kOctetsOfStep;
  if (step < place.steps) {
    const int octet = lane % kOctetsOfStep;
    const int64_t of_row = place.step + step;
    *reinterpret_cast<Words2*>(target.tiles + layout.octet_at(row, of_row, 0, octet)) = digits.high;
    *reinterpret_cast<Words2*>(target.tiles + layout.octet_at(row, of_row, 1, octet)) = digits.low;
  }
  if (lane == 0) {
    *reinterpret_cast<float*>(target.tiles + layout.scale_at(row, place.block)) =
        digits.exponent > kGreatestRowExponent ? float_of(kNanBits)
                                               : power_of_two(digits.exponent);
  }
}

// The counters that the multiplication of the digits takes become 0, by all threads of a kernel.
__device__ __forceinline__ void clear_counters(const DigitTarget& target) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < target.num_counters;
       i += threads) {
    target.counters[i] = 0;
  }
}

// Rows in memory, `stride` numbers apart.
template <typename Number>
struct StoredRows {
  const Number* data;
  int64_t stride;

  // Channels from `channel` on; what is beyond `count` of them is 0.
  __device__ __forceinline__ void read(int64_t row, int64_t channel, int count,
                                       float (&values)[kOctet]) const {
    read_values(data + row * stride + channel, count, values);
  }
};

// The digits of a block of a row, by a warp.
template <class Rows>
__device__ __forceinline__ void quantise_block(const DigitTarget& target, const Rows& rows,
                                               int64_t row, const StepCounts& counts, int block) {
  const BlockPlace place(target.shape, counts, block);
  const int first = static_cast<int>(threadIdx.x) % kWarp * kOctet;
  float values[kOctet];
  rows.read(row, place.channel + first, place.channels - first, values);
  write_row_block(target, row, place, values);
}

inline constexpr int kQuantiseWarps = 8;

// A warp a block of a row.
template <class Rows>
__global__ void __launch_bounds__(kQuantiseWarps* kWarp)
    quantise_rows_kernel(DigitTarget target, Rows rows) {
  wait_for_earlier_kernels();
  clear_counters(target);
  const StepCounts counts(target.shape);
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const int64_t row = warp / counts.blocks();
  if (row >= target.rows) return;
  quantise_block(target, rows, row, counts, static_cast<int>(warp % counts.blocks()));
}

template <class Rows>
cudaError_t quantise_rows(const DigitTarget& target, const Rows& rows, cudaStream_t stream) {
  const int64_t warps = target.rows * target.shape.blocks();
  const dim3 grid(static_cast<unsigned int>(divide_up(warps, kQuantiseWarps)));
  return launch_dependent(grid, dim3(kQuantiseWarps * kWarp), 0, stream,
                          quantise_rows_kernel<Rows>, target, rows);
}

}  // namespace vllm_fork
