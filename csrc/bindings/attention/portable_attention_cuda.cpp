// The CUDA implementations of portable_append, portable_rotate_append, portable_attention and
// portable_attention_digits: the torch side of cuda/attention/cache.cu and
// cuda/attention/attention.cu.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>

#include "bindings/cuda_device.h"
#include "bindings/cuda_tensor_cores.h"
#include "bindings/formats.h"
#include "bindings/portable_checks.h"
#include "bindings/product/portable_product_cuda.h"
#include "bindings/rows/portable_rotation_cuda.h"
#include "cuda/attention/attention.h"
#include "portable/attention.h"

namespace vllm_fork {
namespace {

constexpr const char* kAppend = "portable_append";
constexpr const char* kRotateAppend = "portable_rotate_append";
constexpr const char* kAttention = "portable_attention";

TokenRows rows_of(const Tensor& x) {
  return {x.data_ptr(), format_of(x), x.stride(0), x.stride(1)};
}

CachePages pages_of(const Tensor& cache, int64_t head_size) {
  const int64_t tiles = cache.size(2) / TileLayout{head_size}.bytes();
  return {static_cast<uint8_t*>(cache.data_ptr()), cache.size(0), cache.stride(0),
          cache.stride(1),                         tiles,         head_size};
}

void check_alignment(const Tensor& cache) {
  constexpr int64_t kCopied = 16;  // bytes of a tile, at once
  const bool is_aligned = reinterpret_cast<uintptr_t>(cache.data_ptr()) % kCopied == 0 &&
                          cache.stride(0) % kCopied == 0 && cache.stride(1) % kCopied == 0;
  check(is_aligned, kAttention, ": the blocks and heads of cache must begin at multiples of ",
        kCopied, " bytes.");
}

AppendTask append_task(const Tensor& keys, const Tensor& values, const Tensor& cache,
                       const Tensor& slots) {
  return {rows_of(keys),
          rows_of(values),
          pages_of(cache, keys.size(2)),
          slots.const_data_ptr<int64_t>(),
          slots.size(0),
          keys.size(1)};
}

void portable_append(Tensor keys, Tensor values, Tensor cache, Tensor slots) {
  check_append(keys, values, cache, slots);
  check_devices(kAppend, "keys", keys, {{"values", values}, {"cache", cache}, {"slots", slots}});
  const DeviceGuard guard(keys.get_device_index());
  STD_CUDA_CHECK(
      launch_portable_append(append_task(keys, values, cache, slots), current_stream(keys)));
}

void portable_rotate_append(Tensor query, Tensor keys, Tensor values, Tensor positions,
                            Tensor table, bool is_interleaved, Tensor cache, Tensor slots) {
  check_rotate_append(query, keys, values, positions, table, cache, slots);
  check_devices(kRotateAppend, "query", query,
                {{"keys", keys},
                 {"values", values},
                 {"positions", positions},
                 {"table", table},
                 {"cache", cache},
                 {"slots", slots}});
  const DeviceGuard guard(query.get_device_index());
  STD_CUDA_CHECK(launch_portable_rotate_append(
      rotation_task(query, positions, table, is_interleaved),
      rotation_task(keys, positions, table, is_interleaved),
      append_task(keys, values, cache, slots), current_stream(query)));
}

const float* floats_of(const std::optional<Tensor>& tensor) {
  return tensor ? tensor->const_data_ptr<float>() : nullptr;
}

PagedAttention task_of(const AttentionArguments& a) {
  return {rows_of(a.query),
          a.result.data_ptr(),
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
          tensor_cores_of(a.query) == TensorCores::kInt8Warpgroups};  // as in prompts
}

void check_arguments(const AttentionArguments& a) {
  check_attention(a);
  check_alignment(a.cache);
  check_devices(kAttention, "query", a.query,
                {{"cache", a.cache},
                 {"pages", a.pages},
                 {"query_starts", a.query_starts},
                 {"lengths", a.lengths},
                 {"slopes", a.slopes},
                 {"sinks", a.sinks},
                 {"result", a.result}});
}

// The task, and memory for the parts of its queries. The query's GPU is the current one.
struct SharedAttention {
  PagedAttention task;
  int64_t splits;
  Tensor parts;

  explicit SharedAttention(const AttentionArguments& a)
      : task(task_of(a)),
        splits(attention_splits(task)),
        parts(new_workspace(a.query, attention_part_floats(task, splits), ScalarType::Float)) {}
};

void portable_attention(Tensor query, Tensor cache, Tensor pages, Tensor query_starts,
                        Tensor lengths, double scale, int64_t window, double soft_cap,
                        std::optional<Tensor> slopes, std::optional<Tensor> sinks,
                        Tensor result) {
  const AttentionArguments arguments{query,  cache,    pages,  query_starts, lengths, scale,
                                     window, soft_cap, slopes, sinks,        result};
  check_arguments(arguments);
  const DeviceGuard guard(query.get_device_index());
  SharedAttention shared(arguments);
  STD_CUDA_CHECK(launch_portable_attention(shared.task, shared.splits,
                                           shared.parts.mutable_data_ptr<float>(),
                                           current_stream(query)));
}

Tensor portable_attention_digits(Tensor query, Tensor cache, Tensor pages, Tensor query_starts,
                                 Tensor lengths, double scale, int64_t window, double soft_cap,
                                 std::optional<Tensor> slopes, std::optional<Tensor> sinks,
                                 Tensor result, std::optional<Tensor> exponents, int64_t outputs,
                                 int64_t segments) {
  const AttentionArguments arguments{query,  cache,    pages,  query_starts, lengths, scale,
                                     window, soft_cap, slopes, sinks,        result};
  check_arguments(arguments);
  const DeviceGuard guard(query.get_device_index());
  const RowDigits digits =
      new_digits("portable_attention_digits", query, query.size(0), exponents,
                 {outputs, query.size(1) * query.size(2), segments});
  SharedAttention shared(arguments);
  STD_CUDA_CHECK(launch_portable_attention_digits(shared.task, shared.splits,
                                                  shared.parts.mutable_data_ptr<float>(),
                                                  digits.target, current_stream(query)));
  return digits.memory;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CUDA, library) {
  library.impl("portable_append", TORCH_BOX(&vllm_fork::portable_append));
  library.impl("portable_rotate_append", TORCH_BOX(&vllm_fork::portable_rotate_append));
  library.impl("portable_attention", TORCH_BOX(&vllm_fork::portable_attention));
  library.impl("portable_attention_digits", TORCH_BOX(&vllm_fork::portable_attention_digits));
}
