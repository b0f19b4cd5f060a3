// What a block of threads attends for, and the shape of its work.
#pragma once

#include "cuda/attention/attention_parts.cuh"

namespace vllm_fork {

constexpr int kQueries = 16;  // the rows of a tensor core's product
constexpr int kWarps = kBlockTokens / kTileTokens;
constexpr int kAttentionThreads = kWarps * kWarp;
constexpr int kStepWords = 8;  // of 4 elements, that one product adds up
constexpr int kQuerySteps = static_cast<int>(kLargestHead) / (4 * kStepWords);
constexpr int kWeightSteps = kBlockTokens / (4 * kStepWords);
constexpr int kElements = 8;  // of the result, that one product gives

// The rows of a block of threads: queries of a sequence that share a head of keys, in the order of
// tokens and then of heads.
struct QueryPiece {
  int64_t shared;       // heads that share one of keys
  int64_t key_head;
  int64_t start;        // the row of the sequence's first query
  int64_t first_token;  // its position
  int64_t first;        // query of this piece
  int64_t count;        // of rows of the sequence; 0 or less if there are none for this piece
  const int32_t* pages;

  __device__ __forceinline__ explicit QueryPiece(const PagedAttention& task)
      : shared(task.heads / task.key_heads), key_head(blockIdx.y) {
    // Sequence s has pieces from starts[s] * shared / 16 + s on, which is room enough.
    const int32_t* starts = task.query_starts;
    const int64_t heads = shared;
    const auto first_piece = [starts, heads](int64_t s) {
      return starts[s] * heads / kQueries + s;
    };
    const int64_t piece = blockIdx.x;
    const int64_t sequence = sequence_at(piece, task.sequences, first_piece);
    start = starts[sequence];
    const int64_t tokens = starts[sequence + 1] - start;
    first_token = task.lengths[sequence] - tokens;
    first = (piece - first_piece(sequence)) * kQueries;
    count = tokens * shared;
    pages = task.pages + sequence * task.width;
  }

  __device__ __forceinline__ bool has(int row) const {
    return 0 <= first + row && first + row < count;
  }
  __device__ __forceinline__ int64_t position(int row) const {
    return first_token + (first + row) / shared;
  }
  __device__ __forceinline__ int64_t query(int row) const { return start + (first + row) / shared; }
  __device__ __forceinline__ int64_t head(int row) const {
    return key_head * shared + (first + row) % shared;
  }
  __device__ __forceinline__ int last_row() const {
    return static_cast<int>(count - first < kQueries ? count - first : kQueries) - 1;
  }

  // Whether there is such a query.
  __device__ __forceinline__ bool is_in_place(int row, const PagedAttention& task) const {
    return has(row) && query(row) >= 0 && query(row) < task.queries;
  }

  __device__ __forceinline__ SeenTokens seen_by(int row, const PagedAttention& task) const {
    return tokens_seen(is_in_place(row, task) ? position(row) : -1, task.window);
  }

  // From the first token that any row sees to the last one.
  __device__ __forceinline__ SeenTokens seen_by_any(const PagedAttention& task) const {
    return {seen_by(0, task).first, seen_by(last_row(), task).last};
  }
};

}  // namespace vllm_fork
