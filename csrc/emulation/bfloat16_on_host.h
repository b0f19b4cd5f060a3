// The product of bfloat16 in cuda/primitives/matrix_instructions.cuh for the emulation, as inexact as NVIDIA's
// may be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "emulation/cuda_on_host.h"
#include "portable/number_formats.h"

namespace vllm_fork::emulation {

// The sum of numbers that are aligned to the largest, and lose what is below its 24 bits, as does
// the sum. Tensor cores have some bits more (Fasi et al., "Numerical behavior of NVIDIA tensor
// cores", 2021), which nothing may rely on.
template <int kCount>
float truncated_sum(const float (&addends)[kCount]) {
  float largest = 0;
  for (const float addend : addends) largest = std::max(largest, std::fabs(addend));
  if (largest == 0) return 0;
  const int exponent = std::ilogb(largest) - 23;
  const double to_integers = std::ldexp(1.0, -exponent);
  int64_t sum = 0;
  for (const float addend : addends) sum += static_cast<int64_t>(addend * to_integers);
  int64_t unit = 1;
  while (std::abs(sum / unit) >> 24 != 0) unit *= 2;
  return static_cast<float>(std::ldexp(static_cast<double>(sum / unit * unit), exponent));
}

// One of the two bfloat16 in a word.
inline float bfloat16_of(uint32_t pair, int i) {
  return from_bfloat16(static_cast<uint16_t>(pair >> (16 * i)));
}

}  // namespace vllm_fork::emulation
