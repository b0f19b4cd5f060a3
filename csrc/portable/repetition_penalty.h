// The arithmetic of Hugging Face's repetition penalty, for one logit.
//
//     logit < 0 ? logit * penalty : logit / penalty
//
// This header is the only place where that arithmetic is written down: the scalar CPU path and the
// CUDA kernel call it, and the SIMD paths are tested against it bit by bit.
#pragma once

#include "portable/macros.h"

namespace vllm_fork {

// How a logit is divided by a penalty.
//
// Hugging Face writes `score / penalty` with a Python float. Torch's CPU kernel divides; its CUDA
// kernel, seeing a divisor that lives on the host, takes its reciprocal in double, as Python's float is,
// and multiplies by that, rounded to float32 (ATen, native/cuda/BinaryDivTrueKernel.cu).
// The two differ in the last bit for most penalties, so "the same as Hugging Face" is a statement
// about a device. The caller names the rule; any device can compute either.
enum class DivisionRule {
  kDivide,      // one correctly rounded division: Hugging Face on CPU
  kReciprocal,  // a multiplication by float32(double(1) / penalty): Hugging Face on CUDA
};

// On the GPU the intrinsics pin round-to-nearest, and are never fused into a multiply-add, whatever
// -prec-div and -fmad say. On the CPU the build forbids contraction (-ffp-contract=off). Subnormals
// are kept as long as nobody asks the compiler to flush them (-ftz, -use_fast_math, -ffast-math).
VLLM_FORK_INLINE float multiply_rounded(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

VLLM_FORK_INLINE float divide_rounded(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

VLLM_FORK_INLINE float reciprocal_rounded(double a) {
#if defined(__CUDA_ARCH__)
  return __double2float_rn(__ddiv_rn(1.0, a));
#else
  return static_cast<float>(1.0 / a);
#endif
}

// A penalty prepared for many logits: under kReciprocal the division happens once, here.
template <DivisionRule rule>
struct RepetitionPenalty {
  float factor;   // multiplies negative logits
  float divisor;  // kDivide: divides the others; kReciprocal: its reciprocal multiplies them

  VLLM_FORK_INLINE explicit RepetitionPenalty(double penalty)
      : factor(static_cast<float>(penalty)),
        divisor(rule == DivisionRule::kReciprocal ? reciprocal_rounded(penalty) : factor) {}

  // -0.0 and NaN are not below zero, so they take the division branch, as in Hugging Face.
  VLLM_FORK_INLINE float operator()(float logit) const {
    if (logit < 0.0f) return multiply_rounded(logit, factor);
    if (rule == DivisionRule::kReciprocal) return multiply_rounded(logit, divisor);
    return divide_rounded(logit, divisor);
  }
};

}  // namespace vllm_fork
