// The CUDA implementations of portable_append and portable_attention: the torch side of
// cuda/attention/cache.cu and cuda/attention/attention.cu.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>

#include "bindings/cuda_device.h"
#include "bindings/cuda_tensor_cores.h"
#include "bindings/formats.h"
#include "bindings/portable_checks.h"
#include "cuda/attention/attention.h"
#include "portable/attention.h"

namespace vllm_fork {
namespace {

constexpr const char* kAppend = "portable_append";
constexpr const char* kAttention = "portable_attention";

TokenRows rows_of(const Tensor& x) {
  return {x.data_ptr(), format_of(x), x.stride(0), x.stride(1)};
}

CachePages pages_of(const Tensor& cache, int64_t head_size) {
  const int64_t tiles = cache.size(2) / TileLayout{head_size}.bytes();
  return {static_cast<uint8_t*>(cache.data_ptr()), cache.size(0), cache.stride(0),
          cache.stride(1),                         tiles,         head_size};
}

// Digits are read in words.
void check_alignment(const Tensor& cache) {
  constexpr int64_t kWord = 4;
  const bool is_aligned = reinterpret_cast<uintptr_t>(cache.data_ptr()) % kWord == 0 &&
                          cache.stride(0) % kWord == 0 && cache.stride(1) % kWord == 0;
  check(is_aligned, kAttention, ": the blocks and heads of cache must begin at multiples of ",
        kWord, " bytes.");
}

void portable_append(Tensor keys, Tensor values, Tensor cache, Tensor slots) {
  check_append(keys, values, cache, slots);
  check_devices(kAppend, "keys", keys, {{"values", values}, {"cache", cache}, {"slots", slots}});
  const DeviceGuard guard(keys.get_device_index());
  const AppendTask task{rows_of(keys),
                        rows_of(values),
                        pages_of(cache, keys.size(2)),
                        slots.const_data_ptr<int64_t>(),
                        keys.size(0),
                        keys.size(1)};
  STD_CUDA_CHECK(launch_portable_append(task, current_stream(keys)));
}

const float* floats_of(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr<float>() : nullptr;
}

// Whether the current GPU, the tensor's, multiplies as the kernel of prompts does.
bool has_warpgroups(const Tensor& tensor) {
  const int64_t major = attribute_of(tensor, cudaDevAttrComputeCapabilityMajor);
  return tensor_cores_of(major) == TensorCores::kInt8Warpgroups;
}

PagedAttention task_of(const AttentionArguments& a, const Tensor& result) {
  return {rows_of(a.query),
          result.data_ptr(),
          a.query.size(0),
          a.query.size(1),
          a.cache.size(1),
          pages_of(a.cache, a.query.size(2)),
          a.pages.const_data_ptr<int32_t>(),
          a.query_starts.const_data_ptr<int32_t>(),
          a.lengths.const_data_ptr<int32_t>(),
          a.pages.size(0),
          a.pages.size(1),
          static_cast<float>(a.scale),
          static_cast<float>(a.soft_cap),
          a.window,
          floats_of(a.slopes),
          floats_of(a.sinks),
          has_warpgroups(a.query)};
}

Tensor portable_attention(Tensor query, Tensor cache, Tensor pages, Tensor query_starts,
                          Tensor lengths, double scale, int64_t window, double soft_cap,
                          std::optional<Tensor> slopes, std::optional<Tensor> sinks) {
  const AttentionArguments arguments{query,  cache,    pages,  query_starts, lengths, scale,
                                     window, soft_cap, slopes, sinks};
  check_attention(arguments);
  check_alignment(cache);
  check_devices(kAttention, "query", query,
                {{"cache", cache},
                 {"pages", pages},
                 {"query_starts", query_starts},
                 {"lengths", lengths},
                 {"slopes", slopes},
                 {"sinks", sinks}});
  const DeviceGuard guard(query.get_device_index());
  Tensor result = torch::stable::new_empty(query, {query.size(0), query.size(1), query.size(2)});
  const PagedAttention task = task_of(arguments, result);
  const int64_t splits = attention_splits(task);
  Tensor parts = torch::stable::new_empty(query, {attention_part_floats(task, splits)},
                                          ScalarType::Float);
  STD_CUDA_CHECK(launch_portable_attention(task, splits, parts.mutable_data_ptr<float>(),
                                           current_stream(query)));
  return result;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CUDA, library) {
  library.impl("portable_append", TORCH_BOX(&vllm_fork::portable_append));
  library.impl("portable_attention", TORCH_BOX(&vllm_fork::portable_attention));
}
