#include "cuda/logits/seen_tokens.h"
#include "portable/seen_mask.h"

namespace vllm_fork {
namespace {

constexpr int kWarp = 32;
static_assert(kWarp == kTokensPerWord, "a warp handles a word: lane i has bit i");

constexpr int kMarkThreads = 256;

// A warp takes this many words, and has all their logits in flight before it waits for the first.
constexpr int kWordsPerWarp = 4;
constexpr int kWarpsPerBlock = 8;
constexpr int kWordsPerBlock = kWordsPerWarp * kWarpsPerBlock;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One thread for each entry. Entries of one request may share a word, hence the atomic.
template <typename Token>
__global__ void mark_seen_tokens_kernel(int32_t* __restrict__ seen, SeenMask shape,
                                        const int32_t* __restrict__ slots,
                                        const Token* __restrict__ token_ids, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kMarkThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t slot = slots[i];
  const int64_t token = token_ids[i];
  if (slot < 0 || slot >= shape.num_slots) return;
  if (token < 0 || token >= shape.num_words * kTokensPerWord) return;
  int32_t* word = seen + slot * shape.num_words + word_of(token);
  atomicOr(reinterpret_cast<unsigned int*>(word), bit_of(token));
}

// Block (x, y) handles words [y * kWordsPerBlock, (y + 1) * kWordsPerBlock) of row x. The 32 logits
// of a word are one coalesced access of a warp, which is made only for words that are not zero.
template <DivisionRule rule>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock)
    apply_repetition_penalty_kernel(float* __restrict__ logits, int64_t vocab_size,
                                    int64_t row_stride, const int32_t* __restrict__ seen,
                                    SeenMask shape, const int32_t* __restrict__ slots,
                                    const double* __restrict__ penalties) {
  const int64_t row = blockIdx.x;
  const int64_t slot = slots[row];
  if (slot < 0 || slot >= shape.num_slots) return;

  const int64_t lane = threadIdx.x % kWarp;
  const int64_t first_word =
      int64_t{blockIdx.y} * kWordsPerBlock + (threadIdx.x / kWarp) * kWordsPerWarp;
  const int32_t* words = seen + slot * shape.num_words;
  float* row_logits = logits + row * row_stride;

  bool is_seen[kWordsPerWarp];
  float logit[kWordsPerWarp];
#pragma unroll
  for (int k = 0; k < kWordsPerWarp; ++k) {
    const int64_t word = first_word + k;
    const int64_t token = word * kTokensPerWord + lane;
    is_seen[k] =
        token < vocab_size && (static_cast<uint32_t>(words[word]) & bit_of(token)) != 0;
  }
#pragma unroll
  for (int k = 0; k < kWordsPerWarp; ++k) {
    if (is_seen[k]) logit[k] = row_logits[(first_word + k) * kTokensPerWord + lane];
  }

  const RepetitionPenalty<rule> penalize(penalties[row]);
#pragma unroll
  for (int k = 0; k < kWordsPerWarp; ++k) {
    if (is_seen[k]) row_logits[(first_word + k) * kTokensPerWord + lane] = penalize(logit[k]);
  }
}

}  // namespace

template <typename Token>
cudaError_t launch_mark_seen_tokens(int32_t* seen, SeenMask shape, const int32_t* slots,
                                    const Token* token_ids, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned int>(divide_up(count, kMarkThreads)));
  mark_seen_tokens_kernel<Token>
      <<<grid, kMarkThreads, 0, stream>>>(seen, shape, slots, token_ids, count);
  return cudaGetLastError();
}

template cudaError_t launch_mark_seen_tokens<int32_t>(int32_t*, SeenMask, const int32_t*,
                                                      const int32_t*, int64_t, cudaStream_t);
template cudaError_t launch_mark_seen_tokens<int64_t>(int32_t*, SeenMask, const int32_t*,
                                                      const int64_t*, int64_t, cudaStream_t);

// The grid's limits (2^31 - 1 rows, 65535 * 1024 tokens) are far away; beyond them the launch
// itself fails with cudaErrorInvalidConfiguration.
cudaError_t launch_apply_repetition_penalty(float* logits, int64_t rows, int64_t vocab_size,
                                            int64_t row_stride, const int32_t* seen, SeenMask shape,
                                            const int32_t* slots, const double* penalties,
                                            DivisionRule rule, cudaStream_t stream) {
  if (rows == 0 || vocab_size == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned int>(rows),
                  static_cast<unsigned int>(divide_up(shape.num_words, kWordsPerBlock)));
  const auto kernel = rule == DivisionRule::kReciprocal
                          ? apply_repetition_penalty_kernel<DivisionRule::kReciprocal>
                          : apply_repetition_penalty_kernel<DivisionRule::kDivide>;
  kernel<<<grid, kWarp * kWarpsPerBlock, 0, stream>>>(logits, vocab_size, row_stride, seen, shape,
                                                      slots, penalties);
  return cudaGetLastError();
}

}  // namespace vllm_fork
