// Rows of logits, and their order: what the CPU implementations of the ops on logits share.
#pragma once

#include "bindings/portable_checks.h"
#include "bindings/rows/portable_rows.h"
#include "portable/ordered_key.h"

namespace vllm_fork {

// Calls work(i, row) with each row of the logits as float32.
template <typename Work>
void for_each_row_of(const Tensor& logits, const Work& work) {
  const Numbers source(logits);
  const int64_t vocab = logits.size(1);
  const int64_t stride = logits.stride(0);
  for_each_row(logits.size(0), vocab, [&](int64_t i) {
    float* row = scratch_floats(2 * vocab);
    source.read(i * stride, row, vocab);
    work(i, row);
  });
}

// The first `count` of a row, in order: memory of the calling thread, until the next call.
const std::vector<uint64_t>& first_ranks(const float* row, int64_t size, int64_t count);

}  // namespace vllm_fork
