// The memory that attention needs beside its arguments: made of one piece that the caller keeps.
//
// There is no container in it, because the per-instruction-set translation units use it (see
// portable/macros.h for what goes wrong otherwise).
#pragma once

#include <cstddef>

#include "cpu/operations.h"

namespace vllm_fork {

// Hands out parts of a piece of memory. With null instead of memory it says how much is needed.
class Parts {
 public:
  VLLM_FORK_INLINE explicit Parts(std::byte* memory) : start_(memory) {}

  template <typename T>
  VLLM_FORK_INLINE T* take(int64_t count) {
    auto* part = reinterpret_cast<T*>(start_ + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return part;
  }

  VLLM_FORK_INLINE int64_t used() const { return used_; }

 private:
  std::byte* start_;
  int64_t used_ = 0;
};

// A row of 16-bit integers, whole and in digits, and their sum. The arrays have a size that the
// compiler knows, so that one address leads to all digits of several rows.
struct alignas(64) CoefficientRow {
  int8_t upper[kLargestHead];
  int8_t lower[kLargestHead];
  int16_t integers[kLargestHead];
  int32_t sum;

  // Fills in the digits and the sum of the first `size` integers.
  VLLM_FORK_INLINE void split(int64_t size) {
    int32_t total = 0;
    for (int64_t i = 0; i < size; ++i) {
      total += integers[i];
      upper[i] = static_cast<int8_t>(upper_digit(integers[i]));
      lower[i] = static_cast<int8_t>(integers[i]);
    }
    sum = total;
  }
};

// What does not change about a query: the tokens that it sees are first..last.
struct QueryFacts {
  int64_t first;
  int64_t last;
  const ScoreRule* rule;
  float factor;  // of scores
};

// What each query has gathered of some tokens.
struct GatheredRows {
  int64_t size;
  Gathered* sums;
  float* values;

  VLLM_FORK_INLINE GatheredRows(Parts& parts, int64_t row_size)
      : size(row_size),
        sums(parts.take<Gathered>(kMaxQueries)),
        values(parts.take<float>(kMaxQueries * size)) {}

  VLLM_FORK_INLINE float* values_of(int64_t row) const { return values + row * size; }

  VLLM_FORK_INLINE void clear(int64_t row) const {
    sums[row].exponent = kUnseen;
    sums[row].sum = 0.0f;
    for (int64_t d = 0; d < size; ++d) values[row * size + d] = 0.0f;
  }
};

struct AttentionScratch {
  QueryFacts* facts;
  bool* is_valid;  // no number that is not finite has been met
  CoefficientRow* queries;
  CoefficientRow* weights;  // of the tokens of a block
  GatheredRows superblock;
  GatheredRows total;
  int64_t width;  // of a row of products
  int32_t* products;

  VLLM_FORK_INLINE AttentionScratch(Parts& parts, int64_t size)
      : facts(parts.take<QueryFacts>(kMaxQueries)),
        is_valid(parts.take<bool>(kMaxQueries)),
        queries(parts.take<CoefficientRow>(kMaxQueries)),
        weights(parts.take<CoefficientRow>(kMaxQueries)),
        superblock(parts, size),
        total(parts, size),
        width(size > kBlockTokens ? size : kBlockTokens),
        products(parts.take<int32_t>(kMaxQueries * 2 * width)) {}
};

// For heads of this size. What the memory holds at first does not matter.
VLLM_FORK_INLINE int64_t attention_scratch_bytes(int64_t size) {
  Parts parts(nullptr);
  AttentionScratch(parts, size);
  return parts.used();
}

}  // namespace vllm_fork
