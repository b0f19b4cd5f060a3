// The CPU implementation of prompt_sdpa.
#include <atomic>
#include <cmath>
#include <vector>

#include "bindings/cpu_operators.h"
#include "bindings/attention/sdpa_cpu.h"
#include "cpu/team/team.h"
#include "cpu/isa.h"

namespace vllm_fork {
namespace {

constexpr const char* kPrompts = "prompt_sdpa";
constexpr int64_t kOfSpan = 4;

// A prompt, or the end of one whose beginning is in the cache.
struct Span {
  int64_t begin;  // of its queries
  int64_t end;
  int64_t row;     // of `blocks`
  int64_t length;  // of the text up to its last query

  int64_t queries() const { return end - begin; }
};

void check_arguments(const Tensor& query, const Tensor& pages, const Tensor& blocks,
                     const Tensor& spans, int64_t key_size, const Tensor& result) {
  check_dim(kPrompts, "query", query, 3);
  check_dim(kPrompts, "pages", pages, 4);
  check_dtype(kPrompts, "pages", pages, query.scalar_type());
  check(query.size(2) == key_size && query.stride(2) == 1, kPrompts,
        ": query must have contiguous heads of key_size ", key_size, ", but has heads of ",
        query.size(2), ".");
  check(0 < key_size && key_size < pages.size(3) && pages.stride(3) == 1, kPrompts,
        ": pages must have contiguous keys of ", key_size, " columns, and values beside them.");
  check_dtype(kPrompts, "blocks", blocks, ScalarType::Int);
  check_dim(kPrompts, "blocks", blocks, 2);
  check(blocks.stride(1) == 1, kPrompts, ": rows of blocks must be contiguous.");
  check_dtype(kPrompts, "spans", spans, ScalarType::Long);
  check_dim(kPrompts, "spans", spans, 2);
  check_contiguous(kPrompts, "spans", spans);
  check(spans.size(1) == kOfSpan, kPrompts, ": spans must have ", kOfSpan, " columns, but has ",
        spans.size(1), ".");
  check_dtype(kPrompts, "result", result, query.scalar_type());
  check_dim(kPrompts, "result", result, 3);
  check_length(kPrompts, "result", result, query.size(0), "query");
  check(result.size(1) == query.size(1) && result.size(2) == pages.size(3) - key_size &&
            result.stride(2) == 1 && result.stride(1) == result.size(2),
        kPrompts, ": result must have the heads of query and the columns of values.");
}

void check_span(int64_t index, const Span& span, const Tensor& query, const Tensor& pages,
                const Tensor& blocks) {
  const int64_t block_size = pages.size(2);
  check(0 <= span.begin && span.begin < span.end && span.end <= query.size(0) &&
            span.queries() <= span.length && 0 <= span.row && span.row < blocks.size(0) &&
            span.length <= blocks.size(1) * block_size,
        kPrompts, ": spans[", index, "] is of rows ", span.begin, " to ", span.end,
        ", with a text of ", span.length, " tokens in row ", span.row,
        " of blocks, which there are not.");
  const int32_t* own = static_cast<const int32_t*>(blocks.data_ptr()) + span.row * blocks.stride(0);
  for (int64_t i = 0; i * block_size < span.length; ++i) {
    check(0 <= own[i] && own[i] < pages.size(0), kPrompts, ": blocks[", span.row, ", ", i,
          "] is ", own[i], ", and there are ", pages.size(0), " pages.");
  }
}

// [1, heads, length, size], a view. Queries that follow cached ones are put where they are in the
// prompt, after rows of zeros: the kernel takes its queries in blocks from the first.
Tensor queries_of(const Tensor& query, const Span& span) {
  Tensor own = query;
  own = torch::stable::narrow(own, 0, span.begin, span.queries());
  if (span.queries() < span.length) {
    Tensor padded =
        torch::stable::new_zeros(query, {span.length, query.size(1), query.size(2)});
    Tensor last = padded;
    last = torch::stable::narrow(last, 0, span.length - span.queries(), span.queries());
    torch::stable::copy_(last, own);
    own = padded;
  }
  return torch::stable::unsqueeze(torch::stable::transpose(own, 0, 1), 0);
}

// Of attended [1, heads, length, size], the rows of the queries.
void write_rows(const Tensor& attended, const Span& span, Tensor& result) {
  const auto bytes = static_cast<int64_t>(result.element_size());
  const int64_t heads = result.size(1), row = result.size(2) * bytes;
  const int64_t first = span.length - span.queries();
  const auto* source = static_cast<const char*>(attended.data_ptr());
  auto* out = static_cast<char*>(result.data_ptr());
  for (int64_t i = 0; i < span.queries(); ++i) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t place = head * attended.stride(1) + (first + i) * attended.stride(2);
      std::memcpy(out + (span.begin + i) * result.stride(0) * bytes + head * row,
                  source + place * bytes, row);
    }
  }
}

void check_in_one(const Tensor& query, const Tensor& pages, int64_t key_size, double scale,
                  bool is_there) {
  check_16_bits(kPrompts, "query", query);
  check(key_size % kPromptColumns == 0 && key_size <= kPromptHeadSize &&
            pages.size(3) == 2 * key_size,
        kPrompts, ": in_one takes keys and values of the same multiple of ", kPromptColumns,
        " columns, up to ", kPromptHeadSize, ", but they have ", key_size, " and ",
        pages.size(3) - key_size, ".");
  check(pages.size(1) > 0 && query.size(1) % pages.size(1) == 0, kPrompts,
        ": query must have a multiple of the ", pages.size(1), " heads of pages, but has ",
        query.size(1), ".");
  check(scale > 0, kPrompts, ": in_one takes a positive scale, but it is ", scale, ".");
  check(is_there, kPrompts, ": this CPU has no instructions for in_one.");
}

// Some queries of a prompt, with the heads that share keys and values.
struct Task {
  const Span* span;
  int64_t kv_head, first, last;
};

// Each thread takes the next task when it is ready; the ones that see most tokens come first.
std::vector<Task> tasks_of(const Span* spans, int64_t count, int64_t kv_heads) {
  constexpr int64_t kQueries = 128;
  std::vector<Task> tasks;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = spans[i].length - spans[i].queries();
    for (int64_t last = spans[i].length; last > begin;) {
      const int64_t first = std::max(begin, (last - 1) / kQueries * kQueries);
      for (int64_t head = 0; head < kv_heads; ++head) tasks.push_back({spans + i, head, first, last});
      last = first;
    }
  }
  return tasks;
}

// Keys and values are read where they are, and written once as float32.
void attend_in_one(const Tensor& query, const Tensor& pages, const Tensor& blocks,
                   const Span* spans, int64_t count, double scale, Tensor& result) {
  const int64_t kv_heads = pages.size(1), size = query.size(2);
  const int64_t group = query.size(1) / kv_heads;
  const auto* all_blocks = static_cast<const int32_t*>(blocks.data_ptr());
  const auto* cache = static_cast<const uint16_t*>(pages.data_ptr());
  const auto* queries = static_cast<const uint16_t*>(query.data_ptr());
  auto* out = static_cast<uint16_t*>(result.data_ptr());
  const std::vector<Task> tasks = tasks_of(spans, count, kv_heads);
  std::atomic<size_t> next = 0;
  const auto work = [&](int64_t, int64_t) {
    std::vector<const uint16_t*> places;
    std::vector<float> scratch;
    for (size_t i = next++; i < tasks.size(); i = next++) {
      const auto& [span, kv_head, first, last] = tasks[i];
      places.resize(2 * span->length);
      const uint16_t **keys = places.data(), **values = keys + span->length;
      TokenPlaces<uint16_t>{cache + kv_head * pages.stride(1), pages.stride(0), pages.stride(2),
                            pages.size(2), size}
          .write(all_blocks + span->row * blocks.stride(0), 0, span->length, keys, values);
      // The rows of tensors where the prompt's first token is, or would be.
      const int64_t row = span->end - span->length;
      const int64_t out_token = result.stride(0), query_head = query.stride(1);
      PromptAttention given{queries + row * query.stride(0) + kv_head * group * query_head,
                            query.stride(0), query_head, keys, values, group, size, span->length,
                            first, last, static_cast<float>(scale), nullptr,
                            out + row * out_token + kv_head * group * size, out_token,
                            query.scalar_type() == ScalarType::Half};
      scratch.resize(prompt_scratch(group, size, given.rows()));
      given.scratch = scratch.data();
      chosen_prompt_attention()(given);
    }
  };
  share_work(0, static_cast<int64_t>(tasks.size()), 1, work);
}

bool has_order(int64_t length) {
  return chosen_prompt_attention() != nullptr && has_prompt_order(length);
}

}  // namespace

void prompt_sdpa(Tensor query, Tensor pages, Tensor blocks, Tensor spans, int64_t key_size,
                 std::optional<double> scale, bool enable_gqa, bool in_one, Tensor result) {
  check_arguments(query, pages, blocks, spans, key_size, result);
  const auto* all = reinterpret_cast<const Span*>(spans.const_data_ptr<int64_t>());
  for (int64_t i = 0; i < spans.size(0); ++i) check_span(i, all[i], query, pages, blocks);
  const auto* all_blocks = static_cast<const int32_t*>(blocks.data_ptr());
  const int64_t value_size = pages.size(3) - key_size;
  if (in_one) {
    const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(key_size)));
    check_in_one(query, pages, key_size, factor, chosen_prompt_attention() != nullptr);
    attend_in_one(query, pages, blocks, all, spans.size(0), factor, result);
    return;
  }
  for (int64_t i = 0; i < spans.size(0); ++i) {
    const Span& span = all[i];
    const int32_t* own = all_blocks + span.row * blocks.stride(0);
    Tensor key = torch::stable::new_empty(pages, {1, pages.size(1), span.length, key_size});
    Tensor value = torch::stable::new_empty(pages, {1, pages.size(1), span.length, value_size});
    gather(pages, own, 0, 0, key);
    gather(pages, own, 0, key_size, value);
    const Tensor attended =
        sdpa(queries_of(query, span), key, value, scale, span.queries() > 1, enable_gqa);
    write_rows(attended, span, result);
  }
}

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("prompt_sdpa", TORCH_BOX(&vllm_fork::prompt_sdpa));
}

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CompositeExplicitAutograd, library) {
  library.impl("has_prompt_order", TORCH_BOX(&vllm_fork::has_order));
}
