// What a block of threads attends for, and the shape of its work.
#pragma once

#include "cuda/attention/attention_parts.cuh"
#include "cuda/attention/digit_sums.cuh"

namespace vllm_fork {

constexpr int kQueries = 16;  // the rows of a tensor core's product
constexpr int kWarps = kBlockTokens / kTileTokens;
constexpr int kAttentionThreads = kWarps * kWarp;
constexpr int kStepWords = 8;  // of 4 elements, that one product adds up
constexpr int kWeightSteps = kBlockTokens / (4 * kStepWords);
constexpr int kElements = 8;  // of the result, that one product gives

// The rows of a block of threads: queries of a sequence that share a head of keys, in the order of
// tokens and then of heads.
template <int kRows>
struct QueryPiece {
  int32_t shared;       // heads that share one of keys
  int32_t key_head;
  int64_t start;        // the row of the sequence's first query
  int64_t first_token;  // its position
  int64_t first;        // query of this piece
  int64_t count;        // of rows of the sequence; 0 or less if there are none for this piece
  const int32_t* pages;

  __device__ __forceinline__ QueryPiece(const PagedAttention& task, int64_t piece)
      : shared(static_cast<int32_t>(task.heads / task.key_heads)),
        key_head(static_cast<int32_t>(blockIdx.y)) {
    // Sequence s has pieces from starts[s] * shared / kRows + s on, which is room enough.
    const int32_t* starts = task.query_starts;
    const int64_t heads = shared;
    const auto first_piece = [starts, heads](int64_t s) {
      return starts[s] * heads / kRows + s;
    };
    const int64_t sequence = sequence_at(piece, task.sequences, first_piece);
    start = starts[sequence];
    const int64_t tokens = starts[sequence + 1] - start;
    first_token = task.lengths[sequence] - tokens;
    first = (piece - first_piece(sequence)) * kRows;
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
  // The number of rows before `end` that there are.
  __device__ __forceinline__ int rows_before(int end) const {
    return static_cast<int>(count - first < end ? count - first : end);
  }

  // Whether there is such a query.
  __device__ __forceinline__ bool is_in_place(int row, const PagedAttention& task) const {
    return has(row) && query(row) >= 0 && query(row) < task.queries;
  }

  __device__ __forceinline__ SeenTokens seen_by(int row, const PagedAttention& task) const {
    return tokens_seen(is_in_place(row, task) ? position(row) : -1, task.window);
  }

  // From the first token that any of the rows from `begin` to `end` sees to the last one.
  __device__ __forceinline__ SeenTokens seen_by_any(int begin, int end,
                                                    const PagedAttention& task) const {
    return {seen_by(begin, task).first, seen_by(rows_before(end) - 1, task).last};
  }
};

// Where a tile of a sequence's tokens lies in the cache; nowhere if none of them is seen, or there is
// no page for it.
struct FoundTile {
  const uint8_t* digits = nullptr;
  const uint8_t* scales = nullptr;

  template <int kRows>
  __device__ __forceinline__ FoundTile(const PagedAttention& task, const QueryPiece<kRows>& piece,
                                       const SeenTokens& seen, int32_t tile) {
    const int32_t token = tile * kTileTokens;
    if (token > seen.last || token + kTileTokens <= seen.first) return;
    const auto page_tiles = static_cast<int32_t>(task.cache.page_tiles);
    const int32_t block = tile / page_tiles;
    const int32_t page = block < task.width ? piece.pages[block] : -1;
    if (page < 0 || page >= task.cache.pages) return;
    const TilePlace found(task.cache, page, tile % page_tiles, piece.key_head);
    digits = found.digits;
    scales = found.scales;
  }
};

// What a block of threads has to know of a row beside its digits.
struct QueryFacts {
  SeenTokens seen;
  float factor;
  float slope;
  bool is_valid;
};

// All lanes of a warp make a row's integers: use(word, digits) is given 4 elements at a time. Lane 0
// writes what else there is to know.
template <int kRows, typename Use>
__device__ __forceinline__ void prepare_query(const PagedAttention& task,
                                              const QueryPiece<kRows>& piece, int row,
                                              QueryFacts& facts, const Use& use) {
  const bool is_there = piece.is_in_place(row, task);
  const int64_t head = piece.head(row);
  const int64_t start =
      is_there ? piece.query(row) * task.query.row_stride + head * task.query.head_stride : 0;
  const RowWords words(task.query.start, task.query.format, start,
                       is_there ? task.cache.head_size : 0);
  const uint32_t scale = words.scale();
  const float factor = to_integers(scale);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int w = 0; w < kRowWords; ++w) {
    int32_t integers[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) integers[j] = row_integer(words.x[w][j], scale, factor);
    use(lane + w * kWarp, DigitWords(integers));
  }
  if (lane != 0) return;
  const SeenTokens own = piece.seen_by(row, task);
  const float slope = task.slopes == nullptr || !is_there ? 0.0f : task.slopes[head];
  const ScoreRule rule = score_rule(task.scale, task.soft_cap, slope, task.window);
  const bool is_valid = scale != kInvalidScale && own.are_valid(task);
  facts = {own, rule.factor * unit_of(scale), rule.slope, is_valid};
}

// How what a row has gathered becomes its result: (value * kept, if there is a sink, + 0) / sum.
struct RowEnd {
  float kept = 1.0f;
  float sum;
  bool has_sink;

  __device__ __forceinline__ RowEnd(const PagedAttention& task, int64_t head, Gathered total,
                                    bool is_valid)
      : has_sink(task.sinks != nullptr) {
    if (has_sink) {
      const Sink sink(task.sinks[head]);
      is_valid = is_valid && sink.is_valid;
      kept = merge(total, sink.gathered).kept;
    }
    sum = is_valid ? total.sum : float_of(kNanBits);
  }

  __device__ __forceinline__ float result(float value) const {
    if (has_sink) value = value * kept + 0.0f;  // -0 becomes 0
    return value / sum;
  }
};

}  // namespace vllm_fork
