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
#include "bindings/attention/sdpa_cpu.h"
#include "bindings/product/sum_order.h"
#include "cpu/team/team.h"
#include "cpu/isa.h"

namespace vllm_fork {
namespace {

constexpr const char* kSdpa = "paged_sdpa";

// What the kernels of all dtypes are called with.
struct Given {
  const Tensor& query;
  const Tensor& pages;
  const Tensor& blocks;
  const int64_t* starts;
  const int64_t* stops;
  float scale;

  int64_t tokens(int64_t request) const {
    return std::max<int64_t>(0, stops[request] - starts[request]);
  }
};

// As at::parallel_for shares out the heads of a request.
int64_t heads_of_thread(int64_t heads) {
  const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), heads);
  return (heads + threads - 1) / threads;
}

// Keys and values are read where they are. Calls attend(TokenAttentionOf<Bits>) for each request and
// head of keys.
template <typename Bits, typename Attend>
void attend_in_one(const Given& given, int64_t scratch_size, Tensor& result,
                   const Attend& attend) {
  const auto& [query, pages, blocks, starts, stops, scale] = given;
  const int64_t requests = query.size(0), heads = query.size(1), size = query.size(3);
  const int64_t kv_heads = pages.size(1), group = heads / kv_heads, width = blocks.size(1);
  const auto* all_blocks = static_cast<const int32_t*>(blocks.data_ptr());
  const auto* queries = static_cast<const Bits*>(query.data_ptr());
  const auto* cache = static_cast<const Bits*>(pages.data_ptr());
  auto* out = static_cast<Bits*>(result.data_ptr());
  // Waking a thread takes as long as this many products.
  constexpr int64_t kWorthAThread = 1 << 16;
  int64_t tokens = 0;
  for (int64_t i = 0; i < requests; ++i) tokens += given.tokens(i);
  const int64_t products = std::max<int64_t>(1, 2 * heads * size * tokens);
  const int64_t grain = std::max<int64_t>(1, kWorthAThread * requests * kv_heads / products);
  const int64_t of_thread = heads_of_thread(heads);
  share_work(0, requests * kv_heads, grain, [&](int64_t begin, int64_t end) {
    std::vector<const Bits*> places;
    std::vector<float> scratch(scratch_size);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t request = i / kv_heads, head = i % kv_heads, length = given.tokens(request);
      places.resize(2 * length);
      const Bits **keys = places.data(), **values = keys + length;
      TokenPlaces<Bits>{cache + head * pages.stride(1), pages.stride(0), pages.stride(2),
                        pages.size(2), size}
          .write(all_blocks + request * width, starts[request], stops[request], keys, values);
      const int64_t first = (request * heads + head * group) * size;
      attend(TokenAttentionOf<Bits>{queries + first, keys, values, group, size, length, scale,
                                    scratch.data(), out + first, head * group, of_thread});
    }
  });
}

// Four to seven keys with their orders, and a range without steps for the values, whose flags have
// 2 if their products are fused, and 4 if the first columns are added apart.
FloatOrder float_order(const Tensor& order, int64_t size) {
  OrderRows rows(kSdpa, order);
  FloatOrder found;
  for (int64_t rest = 0; rest < 4; ++rest) {
    const std::vector<SumRange> ranges = rows.ranges(4 + rest, size, false);
    const auto steps_of = [&](int64_t key) -> FloatOrder::Steps {
      const auto own = std::find_if(ranges.begin(), ranges.end(),
                                    [&](const SumRange& range) { return key < range.end; });
      return {own->steps, own->num_steps, own->zero};
    };
    if (rest == 0) found.keys = steps_of(0);
    for (int64_t i = 0; i < rest; ++i) found.rest[rest][i] = steps_of(4 + i);
  }
  const int32_t flags = rows.flags();
  check(rows.range(size, false).num_steps == 0, kSdpa, ": order has steps for values.");
  found.is_fused = (flags & 2) != 0;
  found.has_columns_apart = (flags & 4) != 0;
  check(rows.is_at_end(), kSdpa, ": order has more rows than those of keys and values.");
  return found;
}

void attend_in_order(const Given& given, const std::optional<Tensor>& order, Tensor& result) {
  const int64_t heads = given.query.size(1) / given.pages.size(1), size = given.query.size(3);
  if (given.query.scalar_type() == ScalarType::Float) {
    check(order.has_value(), kSdpa, ": in_one takes an order in float32.");
    const FloatOrder steps = float_order(*order, size);
    attend_in_one<float>(given, float_scratch(heads, size), result,
                         [&](const TokenAttentionOf<float>& one) {
                           chosen_float_token_attention()({one, &steps});
                         });
    return;
  }
  const bool is_float16 = given.query.scalar_type() == ScalarType::Half;
  attend_in_one<uint16_t>(given, kTokenHeads * (size + kTokenKeys), result,
                          [&](const TokenAttentionOf<uint16_t>& one) {
                            chosen_token_attention()({one, is_float16});
                          });
}

bool has_token_attention() { return chosen_token_attention() != nullptr; }

}  // namespace

Tensor token_sdpa_into(const Into& into, const Tensor& query, const Tensor& pages,
                       const Tensor& blocks, const Tensor& starts, const Tensor& stops,
                       int64_t key_size, std::optional<double> scale,
                       const std::optional<Tensor>& order) {
  check_paged_sdpa(query, pages, blocks, starts, stops, key_size);
  check_token_attention(query, pages, key_size, has_token_attention());
  Tensor result =
      into ? *into : torch::stable::new_empty(query, {query.size(0), 1, query.size(1), key_size});
  const double default_scale = 1.0 / std::sqrt(static_cast<double>(key_size));
  const auto factor = static_cast<float>(scale.value_or(default_scale));
  attend_in_order({query, pages, blocks, static_cast<const int64_t*>(starts.data_ptr()),
                   static_cast<const int64_t*>(stops.data_ptr()), factor},
                  order, result);
  return result;
}

Tensor paged_sdpa(Tensor query, Tensor pages, Tensor blocks, Tensor starts, Tensor stops,
                  int64_t key_size, std::optional<double> scale, bool enable_gqa,
                  bool thread_per_request, bool in_one, std::optional<Tensor> order) {
  if (in_one) {
    return token_sdpa_into(std::nullopt, query, pages, blocks, starts, stops, key_size, scale,
                           order);
  }
  check_paged_sdpa(query, pages, blocks, starts, stops, key_size);
  const auto* first = static_cast<const int64_t*>(starts.data_ptr());
  const auto* last = static_cast<const int64_t*>(stops.data_ptr());
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
