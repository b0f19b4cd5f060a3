// Sums of products of bytes, as the emulation's tensor cores make most of their work.
#pragma once

#include <cstdint>

namespace vllm_fork::emulation {

inline constexpr int kStepBytes = 32;  // of a row, that an instruction adds up

// Optimised as the rest of the emulation is not, for it to take vectors.
template <typename Left>
__attribute__((optimize("O3"), noinline)) inline int32_t dot_of_step(const Left* left,
                                                                     const int8_t* right) {
  int32_t sum = 0;
  for (int k = 0; k < kStepBytes; ++k) sum += int16_t{left[k]} * int16_t{right[k]};
  return sum;
}

}  // namespace vllm_fork::emulation
