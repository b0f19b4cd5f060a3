// Attention in decoding and in prompts: see measure.cuh.
#include "cuda/attention/attention.cuh"
#include "cuda/attention/hopper/prompt_attention.cuh"
#include "measure.cuh"

namespace vllm_fork {

// What prompt_attention.cu has, with the one kernel that is measured.
bool are_prompts(const PagedAttention& task) { return task.queries > task.sequences; }

cudaError_t launch_prompt_attention(const PagedAttention& task, cudaStream_t stream) {
  return launch_prompt_kernel<128, true>(task, stream);
}

namespace {

// Cycles are those of a block of 64 tokens.
void measure_attention(int requests, int tokens, int queries) {
  constexpr int kHeads = 32;
  constexpr int kKeyHeads = 8;
  constexpr int kSize = 128;
  constexpr int kPageTokens = 64;
  constexpr int kTiles = kPageTokens / kTileTokens;
  const TileLayout layout{kSize};
  const int64_t head_bytes = kTiles * layout.bytes();
  const int pages = requests * (tokens / kPageTokens);
  const OnGpu<uint8_t> cache(static_cast<size_t>(pages * kKeyHeads * head_bytes));
  fill_all(cache);
  check(cudaMemset2D(cache.data() + kTiles * layout.digit_bytes(), static_cast<size_t>(head_bytes),
                     113, static_cast<size_t>(kTiles * layout.scale_bytes()),
                     static_cast<size_t>(pages) * kKeyHeads));
  std::vector<int32_t> table(static_cast<size_t>(pages));
  for (int i = 0; i < pages; ++i) table[static_cast<size_t>(i)] = i;
  std::vector<int32_t> starts;
  for (int i = 0; i <= requests; ++i) starts.push_back(i * queries);
  const OnGpu<int32_t> on_gpu_table(table);
  const OnGpu<int32_t> on_gpu_starts(starts);
  const OnGpu<int32_t> lengths(std::vector<int32_t>(static_cast<size_t>(requests), tokens));
  const size_t numbers = static_cast<size_t>(requests) * static_cast<size_t>(queries) * kHeads * kSize;
  const OnGpu<uint8_t> query(2 * numbers);
  const OnGpu<uint8_t> result(2 * numbers);
  fill_all(query, true);
  const PagedAttention task{
      {query.data(), Format::kBfloat16, kHeads * kSize, kSize},
      result.data(), int64_t{requests} * queries, kHeads, kKeyHeads,
      {cache.data(), pages, kKeyHeads * head_bytes, head_bytes, kTiles, kSize},
      on_gpu_table.data(), on_gpu_starts.data(), lengths.data(), requests, tokens / kPageTokens,
      0.088f, 0.0f, 0, nullptr, nullptr, true};
  const int64_t splits = attention_splits(task);
  const OnGpu<float> parts(static_cast<size_t>(attention_part_floats(task, splits)));
  char what[80];
  std::snprintf(what, sizeof what, "attention %d x %d, %d queries", requests, tokens, queries);
  const std::vector<const char*> of_prompts{"block", "scores", "weights", "values", "else"};
  const std::vector<const char*> of_few{"scores", "barrier", "copies", "weights",
                                        "barrier", "values", "block"};
  measure(what, queries > 1 ? of_prompts : of_few, [&] {
    return launch_portable_attention(task, splits, parts.data(), nullptr);
  });
}

}  // namespace
}  // namespace vllm_fork

int main() {
  using namespace vllm_fork;
  measure_attention(1, 2048, 1);
  measure_attention(8, 2048, 1);
  measure_attention(64, 2048, 1);
  measure_attention(1, 2048, 2048);
  measure_attention(1, 8192, 8192);
}
