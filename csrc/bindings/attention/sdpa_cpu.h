// PyTorch's attention, and keys and values on their way from pages to it.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "bindings/argument_checks.h"

namespace vllm_fork {

// PyTorch's own function, called through the dispatcher: its bits are what is wanted.
inline Tensor sdpa(const Tensor& query, const Tensor& key, const Tensor& value,
                   std::optional<double> scale, bool is_causal, bool enable_gqa) {
  using torch::stable::detail::from;
  constexpr double dropout_p = 0.0;
  std::array<StableIValue, 8> stack{
      from(query),     from(key),       from(value), from(std::nullopt),
      from(dropout_p), from(is_causal), from(scale), from(enable_gqa)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::scaled_dot_product_attention", "",
                                               stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// Copies the columns from `column` on of one request's pages into target [1, heads, tokens, size].
inline void gather(const Tensor& pages, const int32_t* blocks, int64_t start, int64_t column,
                   Tensor& target) {
  const int64_t heads = target.size(1);
  const int64_t tokens = target.size(2);
  const int64_t block_size = pages.size(2);
  const int64_t bytes = static_cast<int64_t>(pages.element_size());
  const int64_t row = target.size(3) * bytes;
  const auto* source = static_cast<const char*>(pages.data_ptr()) + column * bytes;
  auto* out = static_cast<char*>(target.data_ptr());
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = start; i < start + tokens; ++i) {
      const int64_t place = blocks[i / block_size] * pages.stride(0) + head * pages.stride(1) +
                            i % block_size * pages.stride(2);
      std::memcpy(out, source + place * bytes, row);
      out += row;
    }
  }
}

// Where the keys of a request's tokens [first, last) are, and its values `size` further on.
template <typename Bits>
struct TokenPlaces {
  const Bits* cache;      // of a head
  int64_t page;           // from one to the next, and from one token to the next
  int64_t token;
  int64_t block_size;
  int64_t size;

  void write(const int32_t* blocks, int64_t first, int64_t last, const Bits** keys,
             const Bits** values) const {
    int64_t t = first;
    while (t < last) {
      const int64_t begin = t / block_size * block_size;
      const Bits* own = cache + blocks[t / block_size] * page;
      const int64_t end = std::min(begin + block_size, last);
      for (; t < end; ++t) {
        *keys++ = own + (t - begin) * token;
        *values++ = own + (t - begin) * token + size;
      }
    }
  }
};

}  // namespace vllm_fork
