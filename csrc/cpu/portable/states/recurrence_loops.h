// The recurrences of Mamba2 and of the gated delta rule, over the tokens of a request.
//
// Specification: docs/numerics/states.md. Some tokens are gone through at once: what all columns of
// a state need of them is made once, and a panel of columns stays in the first cache over them.
#pragma once

#include "cpu/portable/rows/row_loops.h"
#include "cpu/portable/states/state_panel.h"
#include "portable/lane_sum.h"

namespace vllm_fork {
namespace {

// Memory of a head. What there is of each token has the token's place among those at once.
template <typename Isa>
struct RecurrenceScratch {
  float* cells;    // [panels, rows, kPanelColumns]
  float* keys;     // [kTokensAtOnce, rows]
  float* queries;  // likewise
  float* decays;   // [kTokensAtOnce]
  float* gates;    // likewise: how much of a token enters the state
  float* inputs;   // [kPanelColumns]
  float* values;   // likewise: what enters the state
  float* sums;     // likewise
  int64_t rows;

  RecurrenceScratch(float* memory, const StateMatrix& state) : rows(state.rows) {
    inputs = memory;
    values = inputs + kPanelColumns;
    sums = values + kPanelColumns;
    cells = sums + kPanelColumns;
    decays = cells + panels_of(state.columns) * rows * kPanelColumns;
    gates = decays + kTokensAtOnce;
    keys = gates + kTokensAtOnce;
    queries = keys + kTokensAtOnce * rows;
  }

  // What is behind a panel's columns is computed, too, and never read: zeros stay zeros there.
  void clear_inputs() const {
    for (int j = 0; j < kPanelColumns; ++j) inputs[j] = 0.0f;
  }

  StatePanel<Isa> panel(int64_t first_column) const { return {cells + first_column * rows, rows}; }
};

template <typename Isa>
struct Mamba2Loop {
  using Rows = RowLoops<Isa>;
  using Scratch = RecurrenceScratch<Isa>;

  const Mamba2Task& task;
  const Scratch& scratch;

  int64_t tokens() const { return task.tokens; }
  const StateMatrix& state() const { return task.state; }

  // What all columns need of tokens.
  void prepare(int64_t first, int64_t count) const {
    float* __restrict steps = scratch.gates;
    float* __restrict decays = scratch.decays;
    for (int64_t i = 0; i < count; ++i) {
      Rows::widen(task.dt.format, task.dt.at(first + i), steps + i, 1);
      Rows::widen(task.b.format, task.b.at(first + i), scratch.keys + i * scratch.rows,
                  scratch.rows);
      Rows::widen(task.c.format, task.c.at(first + i), scratch.queries + i * scratch.rows,
                  scratch.rows);
    }
    for (int64_t i = 0; i < count; ++i) {
      steps[i] = time_step(steps[i], task.dt_bias, task.smallest_dt, task.largest_dt);
      decays[i] = state_decay(steps[i] * task.rate);
    }
  }

  // A token, of which `i` is the place among those that are prepared.
  void step(int64_t token, int64_t i, int64_t column, int64_t count) const {
    const StatePanel<Isa> panel = scratch.panel(column);
    const float step = scratch.gates[i];
    const float* __restrict x = scratch.inputs;
    float* __restrict values = scratch.values;
    float* __restrict sums = scratch.sums;
    Rows::widen(task.x.format, task.x.at(token, column), scratch.inputs, count);
    for (int j = 0; j < kPanelColumns; ++j) values[j] = step * x[j];
    panel.update(scratch.decays[i], scratch.keys + i * scratch.rows, values,
                 scratch.queries + i * scratch.rows, sums);
    if (task.d != nullptr) {
      const float d = *task.d;
      for (int j = 0; j < kPanelColumns; ++j) sums[j] = fused(d, x[j], sums[j]);
    }
    Rows::narrow(task.result.format, sums, task.result.at(token, column), count);
  }
};

template <typename Isa>
struct DeltaRuleLoop {
  using Rows = RowLoops<Isa>;
  using Scratch = RecurrenceScratch<Isa>;

  const DeltaRuleTask& task;
  const Scratch& scratch;

  int64_t tokens() const { return task.tokens; }
  const StateMatrix& state() const { return task.state; }

  // What all columns need of tokens.
  void prepare(int64_t first, int64_t count) const {
    float* __restrict decays = scratch.decays;
    float* __restrict strengths = scratch.gates;
    for (int64_t i = 0; i < count; ++i) {
      Rows::widen(task.a.format, task.a.at(first + i), decays + i, 1);
      Rows::widen(task.b.format, task.b.at(first + i), strengths + i, 1);
      read_direction(task.k, first + i, 1.0f, scratch.keys + i * scratch.rows);
      read_direction(task.q, first + i, task.scale, scratch.queries + i * scratch.rows);
    }
    for (int64_t i = 0; i < count; ++i) {
      decays[i] = state_decay(softplus(decays[i] + task.dt_bias) * task.rate);
      strengths[i] = task.largest_beta * sigmoid(strengths[i]);
    }
  }

  // A query or key, of length `scale`.
  void read_direction(const TokenNumbers& numbers, int64_t token, float scale,
                      float* __restrict x) const {
    const int64_t size = scratch.rows;
    Rows::widen(numbers.format, numbers.at(token), x, size);
    const float squares = lane_sum(size, [x](int64_t k, float s) { return fused(x[k], x[k], s); });
    const float factor = reciprocal_length(squares) * scale;
    for (int64_t k = 0; k < size; ++k) x[k] *= factor;
  }

  // A token, of which `i` is the place among those that are prepared.
  void step(int64_t token, int64_t i, int64_t column, int64_t count) const {
    const StatePanel<Isa> panel = scratch.panel(column);
    const float* keys = scratch.keys + i * scratch.rows;
    const float decay = scratch.decays[i];
    const float strength = scratch.gates[i];
    const float* __restrict v = scratch.inputs;
    const float* __restrict recalled = scratch.sums;
    float* __restrict values = scratch.values;
    Rows::widen(task.v.format, task.v.at(token, column), scratch.inputs, count);
    panel.recall(keys, scratch.sums);
    for (int j = 0; j < kPanelColumns; ++j) {
      values[j] = correction(v[j], recalled[j], decay, strength);
    }
    panel.update(decay, keys, values, scratch.queries + i * scratch.rows, scratch.sums);
    Rows::narrow(task.result.format, scratch.sums, task.result.at(token, column), count);
  }
};

template <typename Isa>
struct Recurrences {
  static void scan_mamba2(const Mamba2Task& task, float* memory) {
    const RecurrenceScratch<Isa> scratch(memory, task.state);
    scan(Mamba2Loop<Isa>{task, scratch}, scratch);
  }

  static void scan_delta_rule(const DeltaRuleTask& task, float* memory) {
    const RecurrenceScratch<Isa> scratch(memory, task.state);
    scan(DeltaRuleLoop<Isa>{task, scratch}, scratch);
  }

 private:
  template <typename Loop>
  static void scan(const Loop& loop, const RecurrenceScratch<Isa>& scratch) {
    const StateMatrix& state = loop.state();
    for (int64_t j = 0; j < state.columns; j += kPanelColumns) scratch.panel(j).load(state, j);
    for (int64_t first = 0; first < loop.tokens(); first += kTokensAtOnce) {
      const int64_t left = loop.tokens() - first;
      const int64_t count = left < kTokensAtOnce ? left : kTokensAtOnce;
      loop.prepare(first, count);
      for (int64_t j = 0; j < state.columns; j += kPanelColumns) {
        const int64_t columns = StatePanel<Isa>::count(state, j);
        scratch.clear_inputs();
        for (int64_t i = 0; i < count; ++i) loop.step(first + i, i, j, columns);
      }
    }
    for (int64_t j = 0; j < state.columns; j += kPanelColumns) scratch.panel(j).store(state, j);
  }
};

}  // namespace
}  // namespace vllm_fork
