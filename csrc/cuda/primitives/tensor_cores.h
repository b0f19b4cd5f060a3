// Which instructions of a GPU's tensor cores multiply digits. No bit of a result depends on it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace vllm_fork {

enum class TensorCores {
  kInt8,            // mma.sync of int8, which every GPU from sm_80 on has
  kInt8Warpgroups,  // likewise, and for many rows or queries Hopper's wgmma (sm_90a)
  kBfloat16,        // mma.sync of bfloat16, for GPUs whose products of int8 are slow
};

inline constexpr const char* kTensorCoresVariable = "VLLM_FORK_CUDA_TENSOR_CORES";

inline constexpr int64_t kHopper = 9;      // compute capabilities, without what is behind the point
inline constexpr int64_t kBlackwell = 10;  // of data centers

// What a GPU of this compute capability multiplies with. `has_warpgroups`: whether it has the code
// for wgmma. `asked` is the value of the variable, empty if it is not set. Throws std::runtime_error
// if that is no kind of product.
inline TensorCores choose_tensor_cores(int64_t major, bool has_warpgroups,
                                       const std::string& asked) {
  const TensorCores int8 = has_warpgroups ? TensorCores::kInt8Warpgroups : TensorCores::kInt8;
  if (asked.empty()) return major == kBlackwell ? TensorCores::kBfloat16 : int8;
  if (asked == "int8") return int8;
  if (asked == "mma") return TensorCores::kInt8;
  if (asked == "bfloat16") return TensorCores::kBfloat16;
  throw std::runtime_error(std::string(kTensorCoresVariable) + "=" + asked +
                           " is not a kind of product that GPUs make of digits: set int8, "
                           "mma or bfloat16, or leave it unset for what suits the GPU.");
}

}  // namespace vllm_fork
