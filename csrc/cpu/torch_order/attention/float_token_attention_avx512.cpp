// AVX-512: attention of single float32 tokens. A register holds sixteen keys, or columns of values.
#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "cpu/torch_order/attention/softmax_avx512.h"
#include "cpu/torch_order/attention/token_attention.h"
#include "cpu/torch_order/attention/transpose_avx512.h"
#include "cpu/torch_order/attention/values_avx512.h"

namespace vllm_fork {
namespace {
namespace avx512 {

// A block of keys, and the scores of all heads with them.
struct Scores {
  const FloatTokenAttention& given;
  float* keys;      // [groups, size, 16]
  float* products;  // [groups, heads, 16]
  float* all;       // [heads, kTokenKeys]

  void multiply(int64_t first_group, int64_t groups, const FloatOrder::Steps& steps) const {
    const int64_t size = given.size;
    ordered_products_avx512({keys + first_group * size * kLanes, groups, size, given.query,
                             given.heads, size, 1, nullptr, steps.steps, steps.count, steps.zero,
                             products});
  }

  void write(int64_t first, int64_t count) const {
    const int64_t groups = (count + kLanes - 1) / kLanes;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t own = first + g * kLanes;
      for (int64_t i = 0; i < given.size; i += kLanes) {
        write_columns<Float32Lanes>(given.keys + own, std::min(kLanes, first + count - own), i,
                                    kLanes, keys + (g * given.size + i) * kLanes);
      }
    }
    multiply(0, groups, given.order->keys);
    for (int64_t h = 0; h < given.heads; ++h) {
      for (int64_t g = 0; g < groups; ++g) {
        const float* source = products + (g * given.heads + h) * kLanes;
        std::copy_n(source, kLanes, all + h * kTokenKeys + g * kLanes);
      }
    }
    const int64_t rest = count % 4;
    for (int64_t i = 0; i < rest; ++i) {
      const int64_t key = count - rest + i;
      multiply(key / kLanes, 1, given.order->rest[rest][i]);
      for (int64_t h = 0; h < given.heads; ++h) {
        all[h * kTokenKeys + key] = products[h * kLanes + key % kLanes];
      }
    }
  }
};

// Adds the values of a block to the sums [heads, size] of kHeads heads from `head` on.
template <int kHeads>
void add_values(const FloatTokenAttention& given, const float* scores, int64_t first, int64_t count,
                int64_t head, float* sums) {
  int64_t apart[kHeads] = {};
  for (int h = 0; h < kHeads && given.order->has_columns_apart; ++h) {
    apart[h] = given.columns_apart_of(head + h);
  }
  const float* const* values = given.values + first;
  const float* weights = scores + head * kTokenKeys;
  float* own = sums + head * given.size;
  const auto add = given.order->is_fused ? add_all_in_sequence<Float32Lanes, kHeads, true>
                                         : add_all_in_sequence<Float32Lanes, kHeads, false>;
  add(weights, values, count, given.size, apart, own);
}

}  // namespace avx512
}  // namespace

void float_token_attention_avx512(const FloatTokenAttention& given) {
  using namespace avx512;
  const int64_t heads = given.heads, size = given.size;
  float* sums = given.scratch;  // [heads, size]
  Scores scores{given, sums + heads * size, nullptr, nullptr};
  scores.products = scores.keys + kTokenKeys * size;
  scores.all = scores.products + kTokenKeys * heads;
  std::vector<RowState> states(heads);
  std::fill_n(sums, heads * size, 0.0f);
  for (int64_t first = 0; first < given.length; first += kTokenKeys) {
    const int64_t count = std::min(kTokenKeys, given.length - first);
    scores.write(first, count);
    for (int64_t h = 0; h < heads; ++h) {
      next_weights<Float32Lanes>(scores.all + h * kTokenKeys, count, count, given.scale, first == 0,
                                 size, states[h], sums + h * size);
    }
    int64_t h = 0;
    for (; h + 4 <= heads; h += 4) add_values<4>(given, scores.all, first, count, h, sums);
    for (; h + 2 <= heads; h += 2) add_values<2>(given, scores.all, first, count, h, sums);
    for (; h < heads; ++h) add_values<1>(given, scores.all, first, count, h, sums);
  }
  for (int64_t h = 0; h < heads; ++h) {
    write_row<Float32Lanes>(sums + h * size, states[h].total, size, given.out + h * size);
  }
}

}  // namespace vllm_fork
