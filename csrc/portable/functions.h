// The functions of one number that operators choose by name.
#pragma once

namespace vllm_fork {

enum class Function {
  kExp,
  kExp2,
  kLog,
  kTanh,
  kSigmoid,
  kErf,
  kRelu,
  kSquaredRelu,
  kSilu,
  kQuickGelu,
  kGelu,
  kGeluTanh,
};

}  // namespace vllm_fork
