// The CPU implementations of portable_mamba2_scan and portable_gated_delta_rule.
#include <torch/csrc/stable/library.h>

#include "bindings/states/requests.h"
#include "portable/elementary.h"

namespace vllm_fork {
namespace {

// How fast the state of each head decays.
std::vector<float> rates_of(const Tensor& a_log) {
  std::vector<float> rates = read_parameter(a_log);
  for (float& rate : rates) rate = -exponential(rate);
  return rates;
}

StateMatrix state_of(const Tensor& states, int64_t slot, int64_t head, bool is_new) {
  float* start = states.mutable_data_ptr<float>() + slot * states.stride(0) +
                 head * states.stride(1);
  return {start, states.size(2), states.stride(2), states.size(3), is_new};
}

float* memory_for(const StateMatrix& state) {
  return scratch_floats(recurrence_floats(state.rows, state.columns));
}

Tensor portable_mamba2_scan(Tensor x, Tensor dt, Tensor a_log, Tensor b, Tensor c,
                            std::optional<Tensor> d, Tensor dt_bias, Tensor states, Tensor slots,
                            Tensor query_start_loc, Tensor has_state, double smallest_dt,
                            double largest_dt) {
  const RequestArguments given{states, slots, query_start_loc, has_state};
  check_mamba2({x, dt, a_log, b, c, d, dt_bias, given, smallest_dt, largest_dt});
  const DefaultFloatEnvironment environment;
  const Requests requests(given);
  const std::vector<float> rates = rates_of(a_log);
  const std::vector<float> biases = read_parameter(dt_bias);
  const std::vector<float> skips = d ? read_parameter(*d) : std::vector<float>();
  Tensor result = result_of(x, requests);
  const int64_t heads_of_group = x.size(1) / b.size(1);
  const int64_t work = states.size(2) * states.size(3);
  requests.for_each(x.size(1), work, [&](int64_t head, int64_t request) {
    const int64_t start = requests.starts[request];
    const int64_t group = head / heads_of_group;
    const Mamba2Task task{requests.tokens(request),
                          token_numbers(x, start, head),
                          token_numbers(dt, start, head),
                          token_numbers(b, start, group),
                          token_numbers(c, start, group),
                          token_numbers(result, start, head),
                          state_of(states, requests.slots[request], head,
                                   !requests.have_states[request]),
                          rates[head],
                          biases[head],
                          static_cast<float>(smallest_dt),
                          static_cast<float>(largest_dt),
                          d ? &skips[head] : nullptr};
    chosen_isa().operations->scan_mamba2(task, memory_for(task.state));
  });
  return result;
}

Tensor portable_gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, Tensor a_log,
                                 Tensor dt_bias, Tensor states, Tensor slots,
                                 Tensor query_start_loc, Tensor has_state, double scale,
                                 bool doubles_beta) {
  const RequestArguments given{states, slots, query_start_loc, has_state};
  check_delta_rule({q, k, v, a, b, a_log, dt_bias, given});
  const DefaultFloatEnvironment environment;
  const Requests requests(given);
  const std::vector<float> rates = rates_of(a_log);
  const std::vector<float> biases = read_parameter(dt_bias);
  Tensor result = result_of(v, requests);
  const int64_t heads_of_key = v.size(1) / k.size(1);
  const int64_t work = states.size(2) * states.size(3);
  requests.for_each(v.size(1), work, [&](int64_t head, int64_t request) {
    const int64_t start = requests.starts[request];
    const int64_t key_head = head / heads_of_key;
    const DeltaRuleTask task{requests.tokens(request),
                             token_numbers(q, start, key_head),
                             token_numbers(k, start, key_head),
                             token_numbers(v, start, head),
                             token_numbers(a, start, head),
                             token_numbers(b, start, head),
                             token_numbers(result, start, head),
                             state_of(states, requests.slots[request], head,
                                      !requests.have_states[request]),
                             rates[head],
                             biases[head],
                             static_cast<float>(scale),
                             doubles_beta ? 2.0f : 1.0f};
    chosen_isa().operations->scan_delta_rule(task, memory_for(task.state));
  });
  return result;
}

}  // namespace
}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_mamba2_scan", TORCH_BOX(&vllm_fork::portable_mamba2_scan));
  library.impl("portable_gated_delta_rule", TORCH_BOX(&vllm_fork::portable_gated_delta_rule));
}
