// Rows of activations to digits: docs/numerics/products.md, section 4.
//
// A warp makes the digits of one block of a row, each lane those of eight channels. A kernel that
// computes activations can do so itself, with write_row_block, in place of writing them.
#pragma once

#include "../portable/number_types.h"
#include "../portable/product.h"
#include "device.cuh"
#include "digit_tiles.cuh"
#include "octets.cuh"

namespace vllm_fork {

// Writes the digits and the scale of a row's block, of which each lane has eight channels.
__device__ __forceinline__ void write_row_block(const RowTiles& layout, uint8_t* tiles, int64_t row,
                                                const BlockPlace& place,
                                                const float (&values)[kOctet]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const OctetDigits digits = split_octet<true>(values, kLeastRowExponent);
  const int step = lane / kOctetsOfStep;
  if (step < place.steps) {
    const int octet = lane % kOctetsOfStep;
    *reinterpret_cast<Words2*>(tiles + layout.octet_at(row, place.step + step, 0, octet)) =
        digits.high;
    *reinterpret_cast<Words2*>(tiles + layout.octet_at(row, place.step + step, 1, octet)) =
        digits.low;
  }
  if (lane == 0) {
    *reinterpret_cast<float*>(tiles + layout.scale_at(row, place.block)) =
        digits.exponent > kGreatestRowExponent ? float_of(kNanBits)
                                               : power_of_two(digits.exponent);
  }
}

// Rows of activations on a GPU, `stride` numbers apart.
template <typename Number>
struct RowsOf {
  const Number* data;
  int64_t stride;
  int64_t rows;
  const int8_t* equalised;  // [inputs], the exponents of the channels; null if all are 0
};

inline constexpr int kQuantiseWarps = 8;

// A warp a block of a row. The counters that the multiplication of these digits takes become 0.
template <typename Number>
__global__ void __launch_bounds__(kQuantiseWarps* kWarp)
    quantise_rows_kernel(ProductShape shape, RowsOf<Number> x, uint8_t* tiles, int32_t* counters,
                         int64_t num_counters) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = thread; i < num_counters; i += threads) counters[i] = 0;

  const StepCounts counts(shape);
  const int64_t row = thread / kWarp / counts.blocks();
  if (row >= x.rows) return;
  const BlockPlace place(shape, counts, static_cast<int>(thread / kWarp % counts.blocks()));
  const int first = static_cast<int>(thread % kWarp) * kOctet;
  float values[kOctet];
  read_values(x.data + row * x.stride + place.channel + first, place.channels - first, values);
  equalise<-1>(x.equalised, place.channel + first, place.channels - first, values);
  write_row_block(RowTiles(shape, x.rows), tiles, row, place, values);
}

template <typename Number>
cudaError_t quantise_rows(const ProductShape& shape, const RowsOf<Number>& x, uint8_t* tiles,
                          int32_t* counters, int64_t num_counters, cudaStream_t stream) {
  const int64_t warps = x.rows * shape.blocks();
  const dim3 grid(static_cast<unsigned int>(divide_up(warps, kQuantiseWarps)));
  return launch(grid, dim3(kQuantiseWarps * kWarp), 0, stream, quantise_rows_kernel<Number>, shape,
                x, tiles, counters, num_counters);
}

}  // namespace vllm_fork
