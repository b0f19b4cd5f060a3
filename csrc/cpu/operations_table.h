// The table of one instruction set, for the per-instruction-set translation units.
#pragma once

#include "cpu/portable/attention/attention_loop.h"
#include "cpu/portable/rows/row_loops.h"
#include "cpu/portable/states/convolution_loop.h"
#include "cpu/portable/states/recurrence_loops.h"

namespace vllm_fork {
namespace {

template <typename Isa>
struct Table {
  using Rows = RowLoops<Isa>;
  using States = Recurrences<Isa>;

  static void attend(const AttentionTask& task, std::byte* memory) {
    Parts parts(memory);
    const AttentionScratch scratch(parts, task.layout.size);
    Attention<Isa>{task, scratch, task.layout.size}.run();
  }

  static constexpr PortableOperations operations() {
    return {Rows::widen,         Rows::narrow,        Rows::apply,
            Rows::multiply,      Rows::add,           Rows::divide,
            Rows::rms_norm,      Rows::layer_norm,    Rows::rotate,
            Rows::quantise,      attend,              Rows::argmax,
            Rows::largest_keys,  Rows::log_softmax,   Rows::relative_probabilities,
            Rows::sum_of_counts, Rows::add_noise,     Convolution<Isa>::convolve,
            States::scan_mamba2, States::scan_delta_rule};
  }
};

}  // namespace
}  // namespace vllm_fork
