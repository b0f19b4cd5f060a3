// The CPU implementation of portable_append.
#include <torch/csrc/stable/library.h>

#include <cstring>

#include "bindings/attention/portable_cache.h"
#include "bindings/portable_checks.h"
#include "bindings/portable_operators_cpu.h"

namespace vllm_fork {
namespace {

constexpr const char* kAppend = "portable_append";

// Every token must have a place in the cache.
void check_slots(const Tensor& keys, const Tensor& cache, const Tensor& slots) {
  const Cache places(cache, keys.size(2));
  const auto* slot = slots.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < keys.size(0); ++i) {
    check(slot[i] < places.blocks * places.block_size(), kAppend, ": slots[", i, "] is ", slot[i],
          ", but cache has room for ", places.blocks * places.block_size(), " tokens.");
  }
}

// A token's keys and values of one head on their way to the cache.
struct Writer {
  const TileLayout& layout;
  int64_t token;  // of the tile
  uint8_t* digits;
  uint8_t* scales;
  float* numbers;  // [size]
  CoefficientRow& row;

  void quantise(const Tensor& x, int64_t index, int64_t head, uint8_t* scale) const {
    Numbers(x).read(index * x.stride(0) + head * x.stride(1), numbers, layout.size);
    *scale = static_cast<uint8_t>(chosen_isa().operations->quantise(numbers, row, layout.size));
  }

  void write_keys(const Tensor& keys, int64_t index, int64_t head) const {
    quantise(keys, index, head, scales + token);
    uint8_t* place = digits + layout.key_place(token, 0);
    for (int64_t d = 0; d < layout.size; d += 4, place += 4 * kTileTokens) {
      std::memcpy(place, row.upper + d, 4);
      std::memcpy(place + layout.digits(), row.lower + d, 4);
    }
  }

  void write_values(const Tensor& values, int64_t index, int64_t head) const {
    quantise(values, index, head, scales + kTileTokens + token);
    uint8_t* place = digits + layout.value_place(token, 0);
    for (int64_t d = 0; d < layout.size; ++d, place += 4) {
      place[0] = static_cast<uint8_t>(row.upper[d]);
      place[layout.digits()] = static_cast<uint8_t>(row.lower[d]);
    }
  }
};

}  // namespace

void portable_append(Tensor keys, Tensor values, Tensor cache, Tensor slots) {
  check_append(keys, values, cache, slots);
  check_slots(keys, cache, slots);
  const int64_t heads = keys.size(1);
  const int64_t size = keys.size(2);
  const Cache places(cache, size);
  const auto* slot = slots.const_data_ptr<int64_t>();
  for_each_row(keys.size(0), 2 * heads * size, [&](int64_t i) {
    if (slot[i] < 0) return;
    Parts parts(scratch_bytes(sizeof(CoefficientRow) + kLargestHead * sizeof(float)));
    auto& row = *parts.take<CoefficientRow>(1);
    auto* numbers = parts.take<float>(size);
    for (int64_t head = 0; head < heads; ++head) {
      const Writer writer{places.layout,
                          slot[i] % kTileTokens,
                          places.digits(slot[i], head),
                          places.scales(slot[i], head),
                          numbers,
                          row};
      writer.write_keys(keys, i, head);
      writer.write_values(values, i, head);
    }
  });
}

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("portable_append", TORCH_BOX(&vllm_fork::portable_append));
}
