// What the loops over tokens of layers with states are given: a request, and a part of its state
// that needs no other part.
#pragma once

#include <cstddef>
#include <cstdint>

#include "portable/macros.h"
#include "portable/number_formats.h"

namespace vllm_fork {

// Columns of a state that are gone through at once. With the usual 128 rows they are 32 KiB, which
// stay in the first cache while a loop goes over some tokens.
constexpr int kPanelColumns = 64;

constexpr int kTokensAtOnce = 16;

constexpr int kConvolvedChannels = 256;  // at once

// Rows of numbers, one a token, from the first token of a request on.
struct TokenNumbers {
  std::byte* start;
  Format format;
  int64_t stride;  // numbers between tokens

  VLLM_FORK_INLINE std::byte* at(int64_t token, int64_t offset = 0) const {
    return start + (token * stride + offset) * size_of(format);
  }
};

// The state of a head.
struct StateMatrix {
  float* start;
  int64_t rows;
  int64_t row_stride;
  int64_t columns;
  bool is_new;  // zeros, whatever is in memory
};

struct Mamba2Task {
  int64_t tokens;
  TokenNumbers x;
  TokenNumbers dt;
  TokenNumbers b;
  TokenNumbers c;
  TokenNumbers result;
  StateMatrix state;
  float rate;  // of decay, not positive
  float dt_bias;
  float smallest_dt;
  float largest_dt;
  const float* d;  // or null
};

struct DeltaRuleTask {
  int64_t tokens;
  TokenNumbers q;
  TokenNumbers k;
  TokenNumbers v;
  TokenNumbers a;
  TokenNumbers b;
  TokenNumbers result;
  StateMatrix state;
  float rate;  // of decay, not positive
  float dt_bias;
  float scale;         // of queries
  float largest_beta;  // 1 or 2
};

// At most kConvolvedChannels channels.
struct ConvolutionTask {
  int64_t tokens;
  int64_t channels;
  int64_t width;
  TokenNumbers x;
  TokenNumbers result;
  TokenNumbers state;    // of the last width - 1 inputs
  bool is_new;           // zeros, whatever is in memory
  const float* weights;  // [width, kConvolvedChannels]
  const float* bias;     // [kConvolvedChannels]
  bool has_silu;
};

constexpr int64_t panels_of(int64_t columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns;
}

// The floats of memory that the loops need, at a multiple of 64 bytes.
constexpr int64_t recurrence_floats(int64_t rows, int64_t columns) {
  const int64_t cells = panels_of(columns) * rows * kPanelColumns;
  return cells + 2 * kTokensAtOnce * (rows + 1) + 3 * kPanelColumns;
}
constexpr int64_t convolution_floats(int64_t width) { return (width + 1) * kConvolvedChannels; }

}  // namespace vllm_fork
