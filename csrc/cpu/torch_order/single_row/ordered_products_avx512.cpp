// AVX-512F: a register holds one output's sums of 16 rows. A run of products is gone through by
// itself, so that any order takes as many registers as there are outputs and groups of rows at once.
#include <immintrin.h>

#include <algorithm>

#include "cpu/torch_order/single_row/ordered_products.h"

namespace vllm_fork {
namespace {
namespace avx512 {

constexpr int64_t kLanes = kOrderedLanes;

template <int kOutputs, int kGroups>
using Sums = __m512[kOutputs][kGroups];

// Adds the products of a step to its sums. `x` is that of the first group.
template <int kOutputs, int kGroups, bool kIsFused>
void add_products(const OrderedProducts& given, const float* x, const float* weight,
                  const SumStep& step, Sums<kOutputs, kGroups>& sums) {
  __m512 own[kOutputs][kGroups];
  for (int n = 0; n < kOutputs; ++n) {
    for (int g = 0; g < kGroups; ++g) own[n][g] = sums[n][g];
  }
  const int64_t group = given.size * kLanes, outputs = given.output_stride;
  const int64_t x_step = step.stride * kLanes, weight_step = step.stride * given.input_stride;
  x += step.first * kLanes;
  weight += step.first * given.input_stride;
  for (int32_t i = 0; i < step.count; ++i, x += x_step, weight += weight_step) {
    __m512 rows[kGroups];
    for (int g = 0; g < kGroups; ++g) rows[g] = _mm512_loadu_ps(x + g * group);
    for (int n = 0; n < kOutputs; ++n) {
      const __m512 w = _mm512_set1_ps(weight[n * outputs]);
      for (int g = 0; g < kGroups; ++g) {
        own[n][g] = kIsFused ? _mm512_fmadd_ps(rows[g], w, own[n][g])
                             : _mm512_add_ps(own[n][g], _mm512_mul_ps(rows[g], w));
      }
    }
  }
  for (int n = 0; n < kOutputs; ++n) {
    for (int g = 0; g < kGroups; ++g) sums[n][g] = own[n][g];
  }
}

// Outputs from `first` on, of kGroups groups of rows from `first_group` on.
template <int kOutputs, int kGroups>
void products(const OrderedProducts& given, int64_t first, int64_t first_group) {
  const float* x = given.x + first_group * given.size * kLanes;
  const float* weight = given.weight + first * given.output_stride;
  const __m512 zero = _mm512_set1_ps(given.zero);
  Sums<kOutputs, kGroups> sums[kMostSums];
  for (int64_t i = 0; i < given.num_steps; ++i) {  // only those that are used
    for (auto& output : sums[given.steps[i].sum]) {
      for (auto& sum : output) sum = zero;
    }
  }
  for (int64_t i = 0; i < given.num_steps; ++i) {
    const SumStep& step = given.steps[i];
    if (step.count > 0) {
      const auto add = step.is_fused ? add_products<kOutputs, kGroups, true>
                                     : add_products<kOutputs, kGroups, false>;
      add(given, x, weight, step, sums[step.sum]);
      continue;
    }
    for (int n = 0; n < kOutputs; ++n) {
      for (int g = 0; g < kGroups; ++g) {
        __m512& own = sums[step.sum][n][g];
        if (step.count < 0) {
          own = _mm512_add_ps(own, _mm512_set1_ps(given.bias[first + n]));
          continue;
        }
        __m512& added = sums[step.first][n][g];
        own = _mm512_add_ps(own, added);
        added = zero;
      }
    }
  }
  for (int n = 0; n < kOutputs; ++n) {
    for (int g = 0; g < kGroups; ++g) {
      const int64_t place = (first_group + g) * given.outputs + first + n;
      _mm512_storeu_ps(given.out + place * kLanes, sums[0][n][g]);
    }
  }
}

// As many outputs at once as leave registers for their sums.
template <int kGroups>
void all_outputs(const OrderedProducts& given, int64_t first_group) {
  int64_t n = 0;
  if constexpr (kGroups <= kOrderedGroups) {
    for (; n + kOrderedOutputs <= given.outputs; n += kOrderedOutputs) {
      products<kOrderedOutputs, kGroups>(given, n, first_group);
    }
  }
  for (; n + 4 <= given.outputs; n += 4) products<4, kGroups>(given, n, first_group);
  for (; n + 2 <= given.outputs; n += 2) products<2, kGroups>(given, n, first_group);
  for (; n < given.outputs; ++n) products<1, kGroups>(given, n, first_group);
}

template <int kGroups>
void all_groups(const OrderedProducts& given, int64_t& next) {
  for (; next + kGroups <= given.groups; next += kGroups) all_outputs<kGroups>(given, next);
}

}  // namespace avx512
}  // namespace

void ordered_products_avx512(const OrderedProducts& given) {
  int64_t next = 0;
  if (given.outputs < kOrderedOutputs) avx512::all_groups<4>(given, next);
  avx512::all_groups<kOrderedGroups>(given, next);
  avx512::all_groups<1>(given, next);
}

}  // namespace vllm_fork
