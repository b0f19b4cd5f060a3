// The path for every CPU: it defines what the others must give.
#include "cpu/operations_table.h"

namespace vllm_fork {
namespace {

struct Scalar {
  static constexpr int kRows = 1;

  template <int kCount>
  static void products(const CoefficientRow* rows, const Tiles& tiles, const Sums* out) {
    for (int m = 0; m < kCount; ++m) {
      sum(rows[m].integers, tiles.upper, tiles, out[m].upper);
      sum(rows[m].integers, tiles.lower, tiles, out[m].lower);
    }
  }

  static void sum(const int16_t* coefficients, const int8_t* const* digits, const Tiles& tiles,
                  int32_t* __restrict out) {
    for (int i = 0; i < kLanes; ++i) out[i] = 0;
    for (int64_t s = 0; s < tiles.count * tiles.steps; ++s) {
      const int8_t* step = digits[s / tiles.steps] + s % tiles.steps * tiles.stride;
      for (int i = 0; i < kLanes; ++i) {
        for (int j = 0; j < 4; ++j) out[i] += coefficients[4 * s + j] * step[4 * i + j];
      }
    }
  }
};

}  // namespace

constexpr PortableOperations portable_operations_scalar = Table<Scalar>::operations();

}  // namespace vllm_fork
