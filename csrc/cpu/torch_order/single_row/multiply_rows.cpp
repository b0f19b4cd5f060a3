#include "cpu/torch_order/single_row/multiply_rows.h"

#include <algorithm>
#include <vector>

#include "cpu/isa.h"
#include "cpu/team/team.h"

namespace vllm_fork {
namespace {

// Weights that stay in the second cache while all rows pass them.
constexpr int64_t kTileBytes = 128 * 1024;

// The numbers as float.
std::vector<float> widened(const RowOperands& operands, const uint16_t* numbers, int64_t count) {
  std::vector<float> wide(count);
  chosen_isa().operations->widen(operands.format, numbers, wide.data(), count);
  return wide;
}

// The order of ATen's product of a vector: 64 sums of a row.
class SumsOfRows {
 public:
  static constexpr int64_t kTile = 1;
  explicit SumsOfRows(const RowOperands& operands)
      : operands_(operands), wide_(widened(operands, operands.x, operands.rows * operands.size)) {}
  int64_t num_sums(int64_t outputs) const { return operands_.rows * outputs; }
  void operator()(const uint16_t* weight, int64_t outputs, float* sums) const {
    chosen_isa().row_products(wide_.data(), operands_.rows, weight,
                              operands_.format == Format::kFloat16, outputs, operands_.size, sums);
  }
  static int64_t place(int64_t row, int64_t output, int64_t outputs) {
    return row * outputs + output;
  }

 private:
  const RowOperands& operands_;
  std::vector<float> wide_;
};

// The order of oneDNN's: chains of pairs.
class ChainsOfRows {
 public:
  static constexpr int64_t kTile = kChainTile;
  ChainsOfRows(const RowOperands& operands, int64_t block)
      : operands_(operands),
        block_(block),
        groups_((operands.rows + kChainLanes - 1) / kChainLanes),
        pairs_(groups_ * operands.size / 2 * kChainLanes) {
    const int64_t num_pairs = operands.size / 2;
    for (int64_t m = 0; m < operands.rows; ++m) {
      uint32_t* lane = &pairs_[m / kChainLanes * num_pairs * kChainLanes + m % kChainLanes];
      const uint16_t* row = operands.x + m * operands.size;
      for (int64_t i = 0; i < num_pairs; ++i) {
        lane[i * kChainLanes] = row[2 * i] | static_cast<uint32_t>(row[2 * i + 1]) << 16;
      }
    }
  }
  int64_t num_sums(int64_t outputs) const { return groups_ * outputs * kChainLanes; }
  void operator()(const uint16_t* weight, int64_t outputs, float* sums) const {
    chosen_row_chains()(pairs_.data(), groups_, weight, outputs, operands_.size, block_, sums);
  }
  static int64_t place(int64_t row, int64_t output, int64_t outputs) {
    return (row / kChainLanes * outputs + output) * kChainLanes + row % kChainLanes;
  }

 private:
  const RowOperands& operands_;
  int64_t block_, groups_;
  std::vector<uint32_t> pairs_;
};

// The same order, a lane for each output.
class ChainsOfFewRows {
 public:
  static constexpr int64_t kTile = 2 * kFewRowOutputs;
  ChainsOfFewRows(const RowOperands& operands, int64_t block) : operands_(operands), block_(block) {}
  static bool takes(const RowOperands& operands, int64_t block) {
    return operands.rows <= kMostFewRows && operands.outputs >= kFewRowOutputs &&
           operands.size % kFewRowColumns == 0 && block % kFewRowColumns == 0;
  }
  int64_t num_sums(int64_t outputs) const {
    return operands_.rows * std::max(outputs, kFewRowOutputs);
  }
  void operator()(const uint16_t* weight, int64_t outputs, float* sums) const {
    const int64_t missing = std::max<int64_t>(0, kFewRowOutputs - outputs);
    chosen_few_row_chains()(operands_.x, operands_.rows, weight - missing * operands_.size,
                            outputs + missing, operands_.size, block_, sums);
    if (!missing) return;  // else outputs before these were computed again
    for (int64_t m = 0; m < operands_.rows; ++m) {
      std::copy_n(sums + m * kFewRowOutputs + missing, outputs, sums + m * outputs);
    }
  }
  static int64_t place(int64_t row, int64_t output, int64_t outputs) {
    return row * outputs + output;
  }

 private:
  const RowOperands& operands_;
  int64_t block_;
};

// Writes [rows, outputs], tile by tile of the weight.
template <typename Order>
void multiply(const RowOperands& operands, const Order& order, uint16_t* target) {
  std::vector<float> bias;
  if (operands.bias) bias = widened(operands, operands.bias, operands.outputs);
  const int64_t row_bytes = std::max<int64_t>(1, 2 * operands.size);
  const int64_t tile = std::max<int64_t>(1, kTileBytes / row_bytes / Order::kTile) * Order::kTile;
  const int64_t num_tiles = (operands.outputs + tile - 1) / tile;
  // One thread does less than this many products, some ten microseconds' worth, as soon as two that
  // wait for each other, of which one may have lost its core; eight rows take about twice as long as
  // one.
  constexpr int64_t kWorthAThread = 1 << 19;
  const int64_t of_a_tile = std::max<int64_t>(1, tile * operands.size * (8 + operands.rows) / 8);
  const int64_t grain = std::max<int64_t>(1, kWorthAThread / of_a_tile);
  share_work(0, num_tiles, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(order.num_sums(tile)), row(tile);
    for (int64_t first = begin * tile; first < std::min(operands.outputs, end * tile);
         first += tile) {
      const int64_t count = std::min(tile, operands.outputs - first);
      order(operands.weight + first * operands.size, count, sums.data());
      for (int64_t m = 0; m < operands.rows; ++m) {
        for (int64_t n = 0; n < count; ++n) {
          row[n] = sums[Order::place(m, n, count)] + (bias.empty() ? 0.0f : bias[first + n]);
        }
        chosen_isa().operations->narrow(operands.format, row.data(),
                                        target + m * operands.outputs + first, count);
      }
    }
  });
}

}  // namespace

void multiply_rows(const RowOperands& operands, int64_t block, uint16_t* target) {
  if (block && ChainsOfFewRows::takes(operands, block)) {
    multiply(operands, ChainsOfFewRows(operands, block), target);
  } else if (block) {
    multiply(operands, ChainsOfRows(operands, block), target);
  } else {
    multiply(operands, SumsOfRows(operands), target);
  }
}

void multiply_transposed(const RowOperands& operands, int64_t block, uint16_t* target) {
  const TransposedOperands given{operands.x, operands.rows, operands.size, operands.outputs};
  const int64_t num_tiles = (operands.outputs + kTransposedTile - 1) / kTransposedTile;
  share_work(0, num_tiles, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> chains(operands.rows * kTransposedTile), sums(chains.size());
    std::vector<float> row(kTransposedTile);
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kTransposedTile;
      const int64_t count = std::min(kTransposedTile, operands.outputs - first);
      chosen_transposed_chains()(given, operands.weight + first, count, block, chains.data(),
                                 sums.data());
      for (int64_t m = 0; m < operands.rows; ++m) {
        for (int64_t n = 0; n < count; ++n) {
          row[n] = sums[m * kTransposedTile + transposed_place(n)];
        }
        chosen_isa().operations->narrow(operands.format, row.data(),
                                        target + m * operands.outputs + first, count);
      }
    }
  });
}

}  // namespace vllm_fork
