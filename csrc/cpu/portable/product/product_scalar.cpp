// Plain C++: the specification's own functions, one output after the other.
#include <cstring>

#include "cpu/portable/product/product_loop.h"

namespace vllm_fork {
namespace {
namespace scalar {

struct Kernel {
  static constexpr int64_t kStep = kGroup;
  static constexpr int64_t kChannelBytes = kDigits;
  static constexpr int64_t kRowsTogether = 1;
  static constexpr int64_t kRowPadding = 0;
  static constexpr int64_t kFewRows = 0;
  static constexpr int64_t kPanelsOfFew = 1;
  static constexpr int64_t kPanels = 1;
  using Session = NoSession;

  // int8 [padded / 4, 2, 4], as in a packed weight.
  static void store(const BlockDigits& digits, int64_t padded, uint8_t* target) {
    for (int64_t k = 0; k < padded; k += kGroup, target += kDigits * kGroup) {
      std::memcpy(target, digits.high + k, kGroup);
      std::memcpy(target + kGroup, digits.low + k, kGroup);
    }
  }

  static void add_block(const BlockWork& work) {
    for (int64_t m = 0; m < work.rows; ++m) {
      add_row(work.weights, reinterpret_cast<const int8_t*>(work.digits + m * work.row_bytes),
              work.groups, work.row_scales[m * work.scale_stride], work.sums, m * kPanel);
    }
  }

  static void add_row(const uint8_t* weights, const int8_t* row, int64_t groups, float row_scale,
                      const TileSums& sums, int64_t index) {
    int32_t words[kPanel];
    std::memcpy(words, weights, sizeof words);
    const auto* w = reinterpret_cast<const int8_t*>(weights + kWordBytes);
    int32_t high[kPanel] = {};
    int32_t mixed[kPanel] = {};
    for (int64_t g = 0; g < groups; ++g, w += kGroupBytes, row += kDigits * kGroup) {
      for (int64_t n = 0; n < kPanel; ++n) {
        for (int64_t k = 0; k < kGroup; ++k) {
          const int32_t w_high = w[n * kGroup + k];
          const int32_t w_low = w[kPanel * kGroup + n * kGroup + k];
          high[n] += row[k] * w_high;
          mixed[n] += row[k] * w_low + row[kGroup + k] * w_high;
        }
      }
    }
    for (int64_t n = 0; n < kPanel; ++n) {
      const float weight_scale = float_of(scale_bits(words[n]));
      sums.add(index + n, add_block_sum(0.0f, high[n], mixed[n], weight_scale, row_scale));
    }
  }
};

}  // namespace scalar
}  // namespace

const ProductKernel& product_kernel_scalar(int64_t) { return kProductKernel<scalar::Kernel>; }

}  // namespace vllm_fork
