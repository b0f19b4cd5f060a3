// What the operators of layers with states share: the requests of a step, and where numbers lie.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstring>
#include <optional>
#include <vector>

#include "bindings/rows/portable_rows.h"
#include "bindings/states/state_checks.h"

namespace vllm_fork {

// A parameter as float32.
inline std::vector<float> read_parameter(const Tensor& parameter) {
  std::vector<float> values(parameter.numel());
  Numbers(parameter).read(0, values.data(), parameter.numel());
  return values;
}

// Of x [tokens, things, ...], those of a thing, from a token on.
inline TokenNumbers token_numbers(const Tensor& x, int64_t token, int64_t thing) {
  const Numbers numbers(x);
  return {numbers.at(token * x.stride(0) + thing * x.stride(1)), numbers.format, x.stride(0)};
}

// The requests of arguments that are checked.
struct Requests {
  const int32_t* slots;
  const int32_t* starts;
  const bool* have_states;
  int64_t count;

  explicit Requests(const RequestArguments& a)
      : slots(a.slots.const_data_ptr<int32_t>()),
        starts(a.query_start_loc.const_data_ptr<int32_t>()),
        have_states(static_cast<const bool*>(a.has_state.data_ptr())),
        count(a.slots.size(0)) {}

  int64_t tokens(int64_t request) const { return starts[request + 1] - starts[request]; }
  int64_t total() const { return starts[count]; }

  // Of a request, about.
  int64_t mean_tokens() const {
    return count == 0 ? 1 : std::max<int64_t>(1, total() / count);
  }

  // Calls work(head, request) for every head and every request that has tokens, where a token is
  // about `size` numbers. Requests of a head are neighbours, so that threads which share heads
  // share long requests, too.
  template <typename Work>
  void for_each(int64_t heads, int64_t size, const Work& work) const {
    for_each_row(heads * count, mean_tokens() * size, [&](int64_t i) {
      const int64_t request = i % count;
      if (tokens(request) > 0) work(i / count, request);
    });
  }
};

// A result for tokens, zeros for those behind the last request's.
inline Tensor result_of(const Tensor& like, const Requests& requests) {
  std::vector<int64_t> shape(like.sizes().begin(), like.sizes().end());
  Tensor result = torch::stable::new_empty(like, shape);
  const int64_t row = like.size(0) == 0 ? 0 : result.numel() / like.size(0);
  const Numbers numbers(result);
  std::memset(numbers.at(requests.total() * row), 0,
              (like.size(0) - requests.total()) * row * size_of(numbers.format));
  return result;
}

}  // namespace vllm_fork
