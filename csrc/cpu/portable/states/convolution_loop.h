// A causal convolution of channels, over the tokens of a request.
//
// Specification: docs/numerics/states.md.
#pragma once

#include "cpu/portable/rows/row_loops.h"
#include "cpu/portable/states/state_tasks.h"

namespace vllm_fork {
namespace {

template <typename Isa>
struct Convolution {
  const ConvolutionTask& task;
  float* window;  // [width, kConvolvedChannels], a ring of the last inputs
  float* sums;    // [kConvolvedChannels]

  static void convolve(const ConvolutionTask& task, float* memory) {
    const Convolution loop{task, memory, memory + task.width * kConvolvedChannels};
    loop.load();
    for (int64_t t = 0; t < task.tokens; ++t) loop.step(t);
    loop.store();
  }

 private:
  using Rows = RowLoops<Isa>;

  // The inputs of a token, which may be up to width - 1 before the first.
  float* inputs(int64_t token) const {
    return window + (token + task.width) % task.width * kConvolvedChannels;
  }

  void load() const {
    const int64_t before = task.width - 1;
    for (int64_t i = 0; i < before; ++i) {
      float* __restrict target = inputs(i - before);
      if (task.is_new) {
        for (int64_t c = 0; c < task.channels; ++c) target[c] = 0.0f;
      } else {
        Rows::widen(task.state.format, task.state.at(i), target, task.channels);
      }
    }
  }

  void store() const {
    const int64_t before = task.width - 1;
    for (int64_t i = 0; i < before; ++i) {
      const float* source = inputs(task.tokens - before + i);
      Rows::narrow(task.state.format, source, task.state.at(i), task.channels);
    }
  }

  void step(int64_t token) const {
    const int64_t channels = task.channels;
    Rows::widen(task.x.format, task.x.at(token), inputs(token), channels);
    float* __restrict sum = sums;
    for (int64_t c = 0; c < channels; ++c) sum[c] = task.bias[c];
    for (int64_t j = 0; j < task.width; ++j) {
      const float* __restrict weights = task.weights + j * kConvolvedChannels;
      const float* __restrict x = inputs(token - task.width + 1 + j);
      for (int64_t c = 0; c < channels; ++c) sum[c] = fused(weights[c], x[c], sum[c]);
    }
    if (task.has_silu) Rows::apply(Function::kSilu, sum, channels);
    Rows::narrow(task.result.format, sum, task.result.at(token), channels);
  }
};

}  // namespace
}  // namespace vllm_fork
