// Numbers in memory whose format is known when a kernel is launched, or not before it runs.
#pragma once

#include "cuda/primitives/device.cuh"
#include "portable/number_types.h"

namespace vllm_fork {

// Calls `use` with a number of the format: its type chooses the kernel.
template <typename Use>
cudaError_t with_number(Format format, const Use& use) {
  switch (format) {
    case Format::kFloat32: return use(float{});
    case Format::kBfloat16: return use(Bfloat16{});
    case Format::kFloat16: return use(Float16{});
  }
  return cudaErrorInvalidValue;
}

// For memory that is read or written seldom enough for the format to be looked at each time.
__device__ __forceinline__ float read_number(const void* start, Format format, int64_t index) {
  if (format == Format::kFloat32) return static_cast<const float*>(start)[index];
  const uint16_t bits = static_cast<const uint16_t*>(start)[index];
  return format == Format::kBfloat16 ? from_bfloat16(bits) : from_float16(bits);
}

__device__ __forceinline__ void write_number(void* start, Format format, int64_t index,
                                             float value) {
  if (format == Format::kFloat32) {
    static_cast<float*>(start)[index] = to_float32(value);
  } else {
    static_cast<uint16_t*>(start)[index] =
        format == Format::kBfloat16 ? to_bfloat16(value) : to_float16(value);
  }
}

}  // namespace vllm_fork
