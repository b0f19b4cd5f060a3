// The memory that attention needs beside its arguments: made of one piece that the caller keeps.
//
// There is no container in it, because the per-instruction-set translation units use it (see
// portable/macros.h for what goes wrong otherwise).
#pragma once

#include <cstddef>

#include "portable_operations.h"

namespace vllm_fork {

// Hands out parts of a piece of memory. With null instead of memory it finds out how much is needed.
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

// A row of 16-bit integers, whole and in digits, and their sum.
struct Coefficients {
  const int16_t* integers;
  const int8_t* upper;
  const int8_t* lower;
  int32_t sum;
};

// A row for each query.
struct CoefficientRows {
  int64_t size;
  int16_t* integers;
  int8_t* upper;
  int8_t* lower;
  int32_t* sums;

  VLLM_FORK_INLINE CoefficientRows(Parts& parts, int64_t row_size)
      : size(row_size),
        integers(parts.take<int16_t>(kMaxQueries * size)),
        upper(parts.take<int8_t>(kMaxQueries * size)),
        lower(parts.take<int8_t>(kMaxQueries * size)),
        sums(parts.take<int32_t>(kMaxQueries)) {}

  VLLM_FORK_INLINE Coefficients operator[](int64_t row) const {
    return {integers + row * size, upper + row * size, lower + row * size, sums[row]};
  }
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
  CoefficientRows queries;
  CoefficientRows weights;
  GatheredRows superblock;
  GatheredRows total;
  float* factors;  // of scores
  bool* is_valid;
  int64_t width;   // of a row of products
  int32_t* products;

  VLLM_FORK_INLINE AttentionScratch(Parts& parts, int64_t size)
      : queries(parts, size),
        weights(parts, kBlockTokens),
        superblock(parts, size),
        total(parts, size),
        factors(parts.take<float>(kMaxQueries)),
        is_valid(parts.take<bool>(kMaxQueries)),
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
