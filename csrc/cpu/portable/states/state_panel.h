// Columns of a head's state in memory of their own, and the two passes that recurrences make over
// them. Each column is a chain of its own, so that vectors of any width have the same bits.
#pragma once

#include "cpu/portable/states/state_tasks.h"
#include "portable/states.h"

namespace vllm_fork {
namespace {

constexpr int kRowsAtOnce = 4;  // sums of columns stay in registers for as long

template <typename Isa>
struct StatePanel {
  float* cells;  // [rows, kPanelColumns]
  int64_t rows;

  // The state's columns from one on, as many as there are; behind them are zeros.
  void load(const StateMatrix& state, int64_t first) const {
    const int64_t given = state.is_new ? 0 : count(state, first);
    for (int64_t r = 0; r < rows; ++r) {
      float* __restrict row = cells + r * kPanelColumns;
      const float* __restrict source = state.start + r * state.row_stride + first;
      for (int64_t j = 0; j < given; ++j) row[j] = source[j];
      for (int64_t j = given; j < kPanelColumns; ++j) row[j] = 0.0f;
    }
  }

  void store(const StateMatrix& state, int64_t first) const {
    const int64_t taken = count(state, first);
    for (int64_t r = 0; r < rows; ++r) {
      const float* __restrict row = cells + r * kPanelColumns;
      float* __restrict target = state.start + r * state.row_stride + first;
      for (int64_t j = 0; j < taken; ++j) target[j] = to_float32(row[j]);
    }
  }

  static int64_t count(const StateMatrix& state, int64_t first) {
    const int64_t left = state.columns - first;
    return left < kPanelColumns ? left : kPanelColumns;
  }

  // The sums over rows of key times cell.
  void recall(const float* keys, float* sums) const {
    for (int j = 0; j < kPanelColumns; ++j) sums[j] = 0.0f;
    int64_t r = 0;
    for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) recall_rows<kRowsAtOnce>(r, keys, sums);
    for (; r < rows; ++r) recall_rows<1>(r, keys, sums);
  }

  // Decays cells, adds key times value, and gives the sums over rows of query times cell.
  void update(float decay, const float* keys, const float* values, const float* queries,
              float* sums) const {
    for (int j = 0; j < kPanelColumns; ++j) sums[j] = 0.0f;
    int64_t r = 0;
    for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) {
      update_rows<kRowsAtOnce>(r, decay, keys, values, queries, sums);
    }
    for (; r < rows; ++r) update_rows<1>(r, decay, keys, values, queries, sums);
  }

 private:
  template <int kCount>
  void recall_rows(int64_t first, const float* keys, float* __restrict sums) const {
    const float* __restrict row = cells + first * kPanelColumns;
    const Few<kCount> key(keys + first);
    for (int j = 0; j < kPanelColumns; ++j) sums[j] = recalled<kCount>(row + j, key, sums[j]);
  }

  template <int kCount>
  void update_rows(int64_t first, float decay, const float* keys, const float* __restrict values,
                   const float* queries, float* __restrict sums) const {
    float* __restrict row = cells + first * kPanelColumns;
    const Few<kCount> key(keys + first);
    const Few<kCount> query(queries + first);
    for (int j = 0; j < kPanelColumns; ++j) {
      sums[j] = updated<kCount>(row + j, decay, key, values[j], query, sums[j]);
    }
  }

  // Numbers that no store to a state changes.
  template <int kCount>
  struct Few {
    float at[kCount];

    VLLM_FORK_INLINE explicit Few(const float* source) {
      for (int i = 0; i < kCount; ++i) at[i] = source[i];
    }
  };

  // A column of a few rows, from row kRow on: a recursion, since it is the loop over columns that
  // should become vectors.
  template <int kCount, int kRow = 0>
  static VLLM_FORK_INLINE float recalled(const float* cell, const Few<kCount>& key, float sum) {
    if constexpr (kRow == kCount) {
      return sum;
    } else {
      sum = fused(key.at[kRow], cell[kRow * kPanelColumns], sum);
      return recalled<kCount, kRow + 1>(cell, key, sum);
    }
  }

  template <int kCount, int kRow = 0>
  static VLLM_FORK_INLINE float updated(float* cell, float decay, const Few<kCount>& key,
                                        float value, const Few<kCount>& query, float sum) {
    if constexpr (kRow == kCount) {
      return sum;
    } else {
      const float next = next_state(cell[kRow * kPanelColumns], decay, key.at[kRow], value);
      cell[kRow * kPanelColumns] = next;
      sum = fused(query.at[kRow], next, sum);
      return updated<kCount, kRow + 1>(cell, decay, key, value, query, sum);
    }
  }
};

}  // namespace
}  // namespace vllm_fork
