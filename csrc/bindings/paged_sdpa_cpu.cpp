// The CPU implementation of paged_sdpa.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "bindings/checks.h"
#include "bindings/cpu_operators.h"
#include "bindings/sdpa_cpu.h"
#include "cpu/isa.h"

namespace vllm_fork {
namespace {

// Keys and values are read where they are.
Tensor attend_in_one(const Tensor& query, const Tensor& pages, const Tensor& blocks,
                     const int64_t* starts, const int64_t* stops, double scale) {
  const int64_t requests = query.size(0), heads = query.size(1), size = query.size(3);
  const int64_t kv_heads = pages.size(1), block_size = pages.size(2);
  const int64_t page = pages.stride(0), of_a_head = pages.stride(1), token = pages.stride(2);
  const int64_t group = heads / kv_heads, width = blocks.size(1);
  const auto* all_blocks = static_cast<const int32_t*>(blocks.data_ptr());
  Tensor result = torch::stable::new_empty(query, {requests, 1, heads, size});
  const auto* queries = static_cast<const uint16_t*>(query.data_ptr());
  const auto* cache = static_cast<const uint16_t*>(pages.data_ptr());
  auto* out = static_cast<uint16_t*>(result.data_ptr());
  // Waking a thread takes as long as this many products.
  constexpr int64_t kWorthAThread = 1 << 16;
  int64_t tokens = 0;
  for (int64_t i = 0; i < requests; ++i) tokens += std::max<int64_t>(0, stops[i] - starts[i]);
  const int64_t products = std::max<int64_t>(1, 2 * heads * size * tokens);
  const int64_t grain = std::max<int64_t>(1, kWorthAThread * requests * kv_heads / products);
  torch::stable::parallel_for(0, requests * kv_heads, grain, [&](int64_t begin, int64_t end) {
    std::vector<const uint16_t*> places;
    std::vector<float> scratch(kTokenHeads * (size + kTokenKeys));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t request = i / kv_heads, head = i % kv_heads;
      const int64_t length = std::max<int64_t>(0, stops[request] - starts[request]);
      places.resize(2 * length);
      const uint16_t **keys = places.data(), **values = keys + length;
      TokenPlaces{cache + head * of_a_head, page, token, block_size, size}.write(
          all_blocks + request * width, starts[request], stops[request], keys, values);
      const int64_t first = (request * heads + head * group) * size;
      chosen_token_attention()({queries + first, keys, values, group, size, length,
                                static_cast<float>(scale), scratch.data(), out + first});
    }
  });
  return result;
}

bool has_token_attention() { return chosen_token_attention() != nullptr; }

}  // namespace

Tensor paged_sdpa(Tensor query, Tensor pages, Tensor blocks, Tensor starts, Tensor stops,
                  int64_t key_size, std::optional<double> scale, bool enable_gqa,
                  bool thread_per_request, bool in_one) {
  check_paged_sdpa(query, pages, blocks, starts, stops, key_size);
  const auto* first = static_cast<const int64_t*>(starts.data_ptr());
  const auto* last = static_cast<const int64_t*>(stops.data_ptr());
  if (in_one) {
    check_token_attention(query, pages, key_size, has_token_attention());
    const double default_scale = 1.0 / std::sqrt(static_cast<double>(key_size));
    return attend_in_one(query, pages, blocks, first, last, scale.value_or(default_scale));
  }
  const int64_t requests = query.size(0);
  const int64_t heads = query.size(1);
  const int64_t value_size = pages.size(3) - key_size;
  Tensor result = torch::stable::new_empty(query, {requests, 1, heads, value_size});
  const auto* all_blocks = static_cast<const int32_t*>(blocks.data_ptr());
  const int64_t row = value_size * static_cast<int64_t>(query.element_size());
  auto* out = static_cast<char*>(result.data_ptr());
  const auto attend = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* own = all_blocks + i * blocks.size(1);
      const int64_t tokens = last[i] - first[i];
      Tensor key = torch::stable::new_empty(pages, {1, pages.size(1), tokens, key_size});
      Tensor value = torch::stable::new_empty(pages, {1, pages.size(1), tokens, value_size});
      gather(pages, own, first[i], 0, key);
      gather(pages, own, first[i], key_size, value);
      Tensor one = query;
      one = torch::stable::narrow(one, 0, i, 1);
      const Tensor attended = sdpa(one, key, value, scale, false, enable_gqa);
      const auto* source = static_cast<const char*>(attended.data_ptr());
      const int64_t stride = attended.stride(1) * static_cast<int64_t>(query.element_size());
      for (int64_t head = 0; head < heads; ++head) {
        std::memcpy(out + (i * heads + head) * row, source + head * stride, row);
      }
    }
  };
  if (thread_per_request) {
    torch::stable::parallel_for(0, requests, 1, attend);
  } else {
    attend(0, requests);  // each on all threads, as PyTorch shares them out
  }
  return result;
}

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("paged_sdpa", TORCH_BOX(&vllm_fork::paged_sdpa));
}

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CompositeExplicitAutograd, library) {
  library.impl("has_token_attention", TORCH_BOX(&vllm_fork::has_token_attention));
}
