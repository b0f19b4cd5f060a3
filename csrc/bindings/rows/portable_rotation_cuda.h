// What CUDA ops that rotate heads share.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include "bindings/formats.h"
#include "cuda/rows/rotary.h"

namespace vllm_fork {

// Of x [rows, heads, size], whose arguments are checked.
inline RotationTask rotation_task(const Tensor& x, const Tensor& positions, const Tensor& table,
                                  bool is_interleaved) {
  return {x.data_ptr(),
          format_of(x),
          x.size(0),
          x.size(1),
          x.stride(0),
          x.stride(1),
          positions.const_data_ptr<int64_t>(),
          table.const_data_ptr<float>(),
          table.size(0),
          table.size(1) / 2,
          is_interleaved};
}

}  // namespace vllm_fork
