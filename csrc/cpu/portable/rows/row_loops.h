// Loops over rows that the per-instruction-set translation units share. They are plain: the
// compiler makes vectors of them, which changes no bit, since nothing in them may be reordered.
//
// `Isa` is a tag that gives each translation unit functions of its own (see portable/macros.h for
// what goes wrong otherwise).
#pragma once

#include "cpu/operations.h"
#include "portable/activations.h"
#include "portable/lane_sum.h"
#include "portable/ordered_key.h"
#include "portable/rotary.h"
#include "portable/vocabulary.h"

namespace vllm_fork {
namespace {

template <typename Isa>
struct RowLoops {
  static void widen(Format format, const void* source, float* target, int64_t count) {
    if (format == Format::kFloat32) {
      std::memcpy(target, source, count * sizeof(float));
      return;
    }
    const auto* bits = static_cast<const uint16_t*>(source);
    if (format == Format::kBfloat16) {
      for (int64_t i = 0; i < count; ++i) target[i] = from_bfloat16(bits[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) target[i] = from_float16(bits[i]);
    }
  }

  static void narrow(Format format, const float* source, void* target, int64_t count) {
    if (format == Format::kFloat32) {
      auto* floats = static_cast<float*>(target);
      for (int64_t i = 0; i < count; ++i) floats[i] = to_float32(source[i]);
      return;
    }
    auto* bits = static_cast<uint16_t*>(target);
    if (format == Format::kBfloat16) {
      for (int64_t i = 0; i < count; ++i) bits[i] = to_bfloat16(source[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) bits[i] = to_float16(source[i]);
    }
  }

  template <typename Map>
  static void map(float* x, int64_t count, const Map& function) {
    for (int64_t i = 0; i < count; ++i) x[i] = function(x[i]);
  }

  static void apply(Function function, float* x, int64_t count) {
    switch (function) {
      case Function::kExp: return map(x, count, [](float v) { return exponential(v); });
      case Function::kExp2: return map(x, count, [](float v) { return exponential2(v); });
      case Function::kLog: return map(x, count, [](float v) { return logarithm(v); });
      case Function::kTanh: return map(x, count, [](float v) { return hyperbolic_tangent(v); });
      case Function::kSigmoid: return map(x, count, [](float v) { return sigmoid(v); });
      case Function::kErf: return map(x, count, [](float v) { return error_function(v); });
      case Function::kRelu: return map(x, count, [](float v) { return relu(v); });
      case Function::kSquaredRelu: return map(x, count, [](float v) { return squared_relu(v); });
      case Function::kSilu: return map(x, count, [](float v) { return silu(v); });
      case Function::kQuickGelu: return map(x, count, [](float v) { return quick_gelu(v); });
      case Function::kGelu: return map(x, count, [](float v) { return gelu(v); });
      case Function::kGeluTanh: return map(x, count, [](float v) { return gelu_tanh(v); });
    }
  }

  static void multiply(float* __restrict x, const float* __restrict factors, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[i] *= factors[i];
  }

  static void add(float* __restrict x, const float* __restrict summands, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[i] += summands[i];
  }

  static void divide(float* x, float divisor, int64_t count) {
    for (int64_t i = 0; i < count; ++i) x[i] /= divisor;
  }

  static void rms_norm(float* __restrict x, const Norm& norm, int64_t size) {
    const float squares = lane_sum(size, [x](int64_t k, float s) { return fused(x[k], x[k], s); });
    const float mean = squares / static_cast<float>(size);
    scale(x, norm, 1.0f / square_root(mean + norm.epsilon), size);
  }

  static void layer_norm(float* __restrict x, const Norm& norm, int64_t size) {
    const auto count = static_cast<float>(size);
    const float mean = lane_sum(size, [x](int64_t k, float s) { return s + x[k]; }) / count;
    for (int64_t k = 0; k < size; ++k) x[k] -= mean;
    const float squares = lane_sum(size, [x](int64_t k, float s) { return fused(x[k], x[k], s); });
    scale(x, norm, 1.0f / square_root(squares / count + norm.epsilon), size);
  }

  static void scale(float* __restrict x, const Norm& norm, float factor, int64_t size) {
    const float* __restrict weight = norm.weight;
    const float* __restrict bias = norm.bias;
    const float offset = norm.weight_offset;
    if (bias != nullptr) {
      for (int64_t k = 0; k < size; ++k) {
        x[k] = fused(x[k] * factor, weight[k] + offset, bias[k]);
      }
    } else if (weight != nullptr) {
      for (int64_t k = 0; k < size; ++k) x[k] = x[k] * factor * (weight[k] + offset);
    } else {
      for (int64_t k = 0; k < size; ++k) x[k] *= factor;
    }
  }

  static void rotate(float* __restrict x, const float* __restrict cosines,
                     const float* __restrict sines, int64_t half, bool is_interleaved) {
    if (is_interleaved) {
      for (int64_t j = 0; j < half; ++j) {
        rotate_pair(x + 2 * j, x + 2 * j + 1, cosines[j], sines[j]);
      }
    } else {
      float* __restrict upper = x + half;
      for (int64_t j = 0; j < half; ++j) rotate_pair(x + j, upper + j, cosines[j], sines[j]);
    }
  }

  static uint32_t quantise(const float* __restrict x, CoefficientRow& row, int64_t size) {
    int16_t* __restrict integers = row.integers;
    int32_t largest = 0;
    for (int64_t d = 0; d < size; ++d) {
      const auto bits = static_cast<int32_t>(bits_of(magnitude(x[d])));
      largest = bits > largest ? bits : largest;
    }
    const uint32_t row_scale = scale_of(static_cast<uint32_t>(largest));
    const float factor = to_integers(row_scale);
    for (int64_t d = 0; d < size; ++d) {
      integers[d] = row_integer(x[d], row_scale, factor);
    }
    row.split(size);
    return row_scale;
  }

  static int32_t largest_key(const float* x, int64_t count) {
    int32_t largest = INT32_MIN;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t key = ordered_key(x[i]);
      largest = key > largest ? key : largest;
    }
    return largest;
  }

  static void largest_keys(const float* x, int64_t count, int32_t* keys) {
    for (int64_t start = 0; start < count; start += kKeysAtOnce) {
      const int64_t size = kKeysAtOnce < count - start ? kKeysAtOnce : count - start;
      keys[start / kKeysAtOnce] = largest_key(x + start, size);
    }
  }

  static int64_t argmax(const float* x, int64_t count) {
    constexpr int64_t kChunk = 1024;  // one that has the key is found by a loop without a way out
    const int32_t largest = largest_key(x, count);
    for (int64_t start = 0; start < count; start += kChunk) {
      const int64_t end = start + kChunk < count ? start + kChunk : count;
      int32_t hits = 0;
      for (int64_t i = start; i < end; ++i) hits |= ordered_key(x[i]) == largest ? 1 : 0;
      for (int64_t i = start; hits != 0 && i < end; ++i) {
        if (ordered_key(x[i]) == largest) return i;
      }
    }
    return 0;
  }

  // The largest of all; NaN if one is NaN.
  static float largest_of(const float* x, int64_t count) {
    return number_of_key(largest_key(x, count));
  }

  static constexpr int kSumsAtOnce = 64;  // any number would do: they are exact

  static double total(const double* sums) {
    double sum = 0.0;
    for (int j = 0; j < kSumsAtOnce; ++j) sum += sums[j];
    return sum;
  }

  static double sum_of_counts(const float* probabilities, int64_t count) {
    double sums[kSumsAtOnce] = {};
    int64_t i = 0;
    for (; i + kSumsAtOnce <= count; i += kSumsAtOnce) {
      for (int j = 0; j < kSumsAtOnce; ++j) sums[j] += probability_count(probabilities[i + j]);
    }
    for (; i < count; ++i) sums[0] += probability_count(probabilities[i]);
    return total(sums);
  }

  static void log_softmax(float* x, int64_t count) {
    const float largest = largest_of(x, count);
    if (magnitude(largest) == float_of(kInfinityBits) || largest != largest) {
      for (int64_t i = 0; i < count; ++i) x[i] = float_of(kNanBits);
      return;
    }
    double sums[kSumsAtOnce] = {};
    int64_t i = 0;
    for (; i + kSumsAtOnce <= count; i += kSumsAtOnce) {
      for (int j = 0; j < kSumsAtOnce; ++j) {
        x[i + j] -= largest;
        sums[j] += probability_count(exponential(x[i + j]));
      }
    }
    for (; i < count; ++i) {
      x[i] -= largest;
      sums[0] += probability_count(exponential(x[i]));
    }
    const double sum = total(sums);
    const float logarithm_of_sum = logarithm(static_cast<float>(sum * kProbabilityUnit));
    for (i = 0; i < count; ++i) x[i] -= logarithm_of_sum;
  }

  static void relative_probabilities(const float* __restrict x, float largest,
                                     float* __restrict probabilities, int64_t count) {
    for (int64_t i = 0; i < count; ++i) probabilities[i] = exponential(x[i] - largest);
  }

  static void add_noise(float* __restrict x, int64_t seed, int64_t position, int64_t count) {
    constexpr int64_t kGroups = 64;
    uint32_t words[4 * kGroups];
    for (int64_t start = 0; start < count; start += 4 * kGroups) {
      noise_words(words, kGroups, start / 4, seed, position);
      const int64_t end = 4 * kGroups < count - start ? 4 * kGroups : count - start;
      for (int64_t i = 0; i < end; ++i) x[start + i] += gumbel_noise(words[i]);
    }
  }

  // The four words of each counter belong to four tokens in a row.
  static void noise_words(uint32_t* __restrict words, int64_t groups, int64_t first_group,
                          int64_t seed, int64_t position) {
    for (int64_t g = 0; g < groups; ++g) {
      const NoiseWords group(first_group + g, seed, position);
      for (int j = 0; j < 4; ++j) words[4 * g + j] = group.words[j];
    }
  }
};

}  // namespace
}  // namespace vllm_fork
