// The CPU implementation of portable_causal_conv.
#include <torch/csrc/stable/library.h>

#include "bindings/states/requests.h"

namespace vllm_fork {
namespace {

// The numbers that an input of a channel is worth, its activation among them.
constexpr int64_t kWorkOfInput = 4;

// Those of a block of channels whose weights are brought into order once.
constexpr int64_t kRequestsAtOnce = 8;

// Brings weights and biases of a block of channels into order: [width + 1, kConvolvedChannels], of
// which the last row are the biases. Behind that, memory for as many numbers is written to as well.
void read_weights(const Tensor& weight, const std::optional<Tensor>& bias, int64_t first,
                  int64_t count, float* target) {
  const int64_t width = weight.size(1);
  float* biases = target + width * kConvolvedChannels;
  float* given = biases + kConvolvedChannels;
  Numbers(weight).read(first * width, given, count * width);
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t j = 0; j < width; ++j) target[j * kConvolvedChannels + c] = *given++;
  }
  if (bias) {
    Numbers(*bias).read(first, biases, count);
  } else {
    std::fill_n(biases, count, 0.0f);
  }
}

Tensor portable_causal_conv(Tensor x, Tensor weight, std::optional<Tensor> bias, Tensor states,
                            Tensor slots, Tensor query_start_loc, Tensor has_state,
                            bool has_silu) {
  const RequestArguments given{states, slots, query_start_loc, has_state};
  check_convolution({x, weight, bias, given});
  const Requests requests(given);
  Tensor result = result_of(x, requests);
  const Numbers memory(states);
  const int64_t channels = x.size(1);
  const int64_t width = weight.size(1);
  const int64_t size = convolution_floats(width);
  const auto convolve = [&](int64_t first, int64_t request, float* scratch) {
    const int64_t start = requests.starts[request];
    const int64_t place = requests.slots[request] * states.stride(0) + first;
    const ConvolutionTask task{requests.tokens(request),
                               std::min<int64_t>(kConvolvedChannels, channels - first),
                               width,
                               token_numbers(x, start, first),
                               token_numbers(result, start, first),
                               {memory.at(place), memory.format, states.stride(1)},
                               !requests.have_states[request],
                               scratch,
                               scratch + width * kConvolvedChannels,
                               has_silu};
    if (task.tokens > 0) chosen_isa().operations->convolve(task, scratch + size);
  };
  const int64_t groups = (requests.count + kRequestsAtOnce - 1) / kRequestsAtOnce;
  const int64_t blocks = (channels + kConvolvedChannels - 1) / kConvolvedChannels;
  const int64_t work = requests.mean_tokens() * kRequestsAtOnce * kConvolvedChannels * kWorkOfInput;
  for_each_row(blocks * groups, work, [&](int64_t i) {
    const int64_t first = i / groups * kConvolvedChannels;
    const int64_t begin = i % groups * kRequestsAtOnce;
    const int64_t end = std::min(begin + kRequestsAtOnce, requests.count);
    float* scratch = scratch_floats(2 * size);
    const int64_t count = std::min<int64_t>(kConvolvedChannels, channels - first);
    read_weights(weight, bias, first, count, scratch);
    for (int64_t request = begin; request < end; ++request) convolve(first, request, scratch);
  });
  return result;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_causal_conv", TORCH_BOX(&vllm_fork::portable_causal_conv));
}
