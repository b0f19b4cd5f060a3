// The CPU implementation of portable_attention.
#include <torch/csrc/stable/library.h>

#include <optional>

#include "bindings/attention/portable_cache.h"
#include "bindings/portable_checks.h"
#include "bindings/portable_operators_cpu.h"

namespace vllm_fork {
namespace {

constexpr const char* kAttention = "portable_attention";

// Every token that is read must be in a block that there is.
void check_sequences(const AttentionArguments& a, const Cache& cache) {
  const auto* starts = a.query_starts.const_data_ptr<int32_t>();
  const auto* lengths = a.lengths.const_data_ptr<int32_t>();
  const auto* pages = a.pages.const_data_ptr<int32_t>();
  const int64_t sequences = a.pages.size(0);
  const int64_t width = a.pages.size(1);
  check(starts[0] == 0 && starts[sequences] == a.query.size(0), kAttention,
        ": query_starts must begin with 0 and end with the ", a.query.size(0), " rows of query.");
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t queries = starts[i + 1] - starts[i];
    check(0 <= queries && queries <= lengths[i] && lengths[i] <= width * cache.block_size(),
          kAttention, ": lengths[", i, "] must be in ", queries, "..", width * cache.block_size(),
          ", from the sequence's queries to the room of its pages, but is ", lengths[i], ".");
    const int64_t left_behind = a.window > 0 ? lengths[i] - queries + 1 - a.window : 0;
    const int64_t earliest = std::max<int64_t>(0, left_behind);
    const int64_t used = (lengths[i] + cache.block_size() - 1) / cache.block_size();
    for (int64_t b = earliest / cache.block_size(); queries > 0 && b < used; ++b) {
      const int32_t page = pages[i * width + b];
      check(0 <= page && page < cache.blocks, kAttention, ": pages[", i, ", ", b, "] is ", page,
            ", but cache has ", cache.blocks, " blocks.");
    }
  }
}

// The work: pieces of up to 16 queries of a sequence that share a head of keys, numbered through.
class Pieces {
 public:
  Pieces(const int32_t* starts, int64_t sequences, int64_t key_heads, int64_t shared)
      : shared_(shared), ends_(sequences) {
    int64_t total = 0;
    for (int64_t i = 0; i < sequences; ++i) {
      total += key_heads * per_head(starts[i + 1] - starts[i]);
      ends_[i] = total;
    }
  }

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  int64_t per_head(int64_t queries) const {
    return (queries * shared_ + kMaxQueries - 1) / kMaxQueries;
  }
  int64_t sequence_of(int64_t piece) const {
    return std::upper_bound(ends_.begin(), ends_.end(), piece) - ends_.begin();
  }
  int64_t first_of(int64_t sequence) const { return sequence == 0 ? 0 : ends_[sequence - 1]; }

 private:
  int64_t shared_;
  std::vector<int64_t> ends_;
};

std::vector<ScoreRule> rules_of(const AttentionArguments& a) {
  const float* slopes = a.slopes ? a.slopes->const_data_ptr<float>() : nullptr;
  std::vector<ScoreRule> rules;
  for (int64_t h = 0; h < a.query.size(1); ++h) {
    rules.push_back(score_rule(static_cast<float>(a.scale), static_cast<float>(a.soft_cap),
                               slopes == nullptr ? 0.0f : slopes[h], a.window));
  }
  return rules;
}

// Attention of one piece.
class PieceOfWork {
 public:
  PieceOfWork(const AttentionArguments& arguments, const Cache& cache, const Tensor& result,
              const std::vector<ScoreRule>& rules, const Pieces& pieces)
      : a_(arguments),
        cache_(cache),
        source_(arguments.query),
        target_(result),
        rules_(rules),
        pieces_(pieces),
        starts_(a_.query_starts.const_data_ptr<int32_t>()),
        lengths_(a_.lengths.const_data_ptr<int32_t>()),
        sinks_(a_.sinks ? a_.sinks->const_data_ptr<float>() : nullptr),
        size_(cache_.layout.size),
        heads_(a_.query.size(1)),
        shared_(heads_ / a_.cache.size(1)) {}

  void operator()(int64_t piece) const {
    const int64_t scratch = attention_scratch_bytes(size_);
    std::byte* memory = scratch_bytes(scratch + 2 * kMaxQueries * size_ * sizeof(float));
    auto* rows = reinterpret_cast<float*>(memory + scratch);
    const int64_t sequence = pieces_.sequence_of(piece);
    const int64_t queries = starts_[sequence + 1] - starts_[sequence];
    const int64_t local = piece - pieces_.first_of(sequence);
    const int64_t key_head = local / pieces_.per_head(queries);

    AttentionTask task = task_of(sequence, key_head);
    task.queries = rows;
    task.out = rows + kMaxQueries * size_;
    task.first_query = local % pieces_.per_head(queries) * kMaxQueries;
    task.count = std::min<int64_t>(kMaxQueries, queries * shared_ - task.first_query);
    for (int64_t r = 0; r < task.count; ++r) {
      const Place from = place(starts_[sequence], key_head, task.first_query + r);
      const int64_t start = from.row * a_.query.stride(0) + from.head * a_.query.stride(1);
      source_.read(start, rows + r * size_, size_);
    }
    chosen_isa().operations->attend(task, memory);
    for (int64_t r = 0; r < task.count; ++r) {
      const Place to = place(starts_[sequence], key_head, task.first_query + r);
      target_.write((to.row * heads_ + to.head) * size_, task.out + r * size_, size_);
    }
  }

 private:
  struct Place {
    int64_t row;
    int64_t head;
  };

  Place place(int64_t start, int64_t key_head, int64_t query) const {
    return {start + query / shared_, key_head * shared_ + query % shared_};
  }

  // What all pieces of a sequence and a head of keys have in common.
  AttentionTask task_of(int64_t sequence, int64_t key_head) const {
    AttentionTask task{};
    task.first_token = lengths_[sequence] - (starts_[sequence + 1] - starts_[sequence]);
    task.heads = shared_;
    task.rules = rules_.data() + key_head * shared_;
    task.sinks = sinks_ == nullptr ? nullptr : sinks_ + key_head * shared_;
    task.layout = cache_.layout;
    task.cache = cache_.start + key_head * cache_.head_stride;
    task.page_stride = cache_.page_stride;
    task.page_tiles = cache_.page_tiles;
    task.pages = a_.pages.const_data_ptr<int32_t>() + sequence * a_.pages.size(1);
    return task;
  }

  const AttentionArguments& a_;
  const Cache& cache_;
  Numbers source_;
  Numbers target_;
  const std::vector<ScoreRule>& rules_;
  const Pieces& pieces_;
  const int32_t* starts_;
  const int32_t* lengths_;
  const float* sinks_;
  int64_t size_;  // of a head
  int64_t heads_;
  int64_t shared_;  // heads that share one of the cache
};

}  // namespace

void portable_attention(Tensor query, Tensor cache, Tensor pages, Tensor query_starts,
                        Tensor lengths, double scale, int64_t window, double soft_cap,
                        std::optional<Tensor> slopes, std::optional<Tensor> sinks,
                        Tensor result) {
  const AttentionArguments arguments{query,  cache,    pages,  query_starts, lengths, scale,
                                     window, soft_cap, slopes, sinks,        result};
  check_attention(arguments);
  const Cache places(cache, query.size(2));
  check_sequences(arguments, places);
  const DefaultFloatEnvironment environment;
  const std::vector<ScoreRule> rules = rules_of(arguments);
  const Pieces pieces(query_starts.const_data_ptr<int32_t>(), pages.size(0), cache.size(1),
                      query.size(1) / cache.size(1));
  const PieceOfWork work(arguments, places, result, rules, pieces);
  for_each_row(pieces.count(), kNumbersPerTask, work);
}

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_attention", TORCH_BOX(&vllm_fork::portable_attention));
}
