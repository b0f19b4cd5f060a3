// The AMX kernel of the portable product on tiles that plain C++ emulates: built as a library by
// test_portable_product_amx.py.
#include <cstdint>
#include <cstring>

#include "cpu/portable/product/product_amx.h"

namespace vllm_fork {
namespace {

// Bytes that a tile may be loaded from.
struct Range {
  const uint8_t* first;
  int64_t size;

  bool holds(const uint8_t* row, int64_t bytes) const {
    return row >= first && row + bytes <= first + size;
  }
};

constexpr int kRows = 16;
constexpr int kRowBytes = 64;

struct EmulatedTiles {
  static inline uint8_t tiles[8][kRows][kRowBytes];
  static inline Range readable[2];
  static inline bool is_configured = false;
  static inline bool has_failed = false;

  struct Session {
    Session() {
      has_failed |= is_configured;
      is_configured = true;
      std::memset(tiles, 0, sizeof tiles);
    }
    ~Session() { is_configured = false; }
  };

  template <int kTile>
  static void zero() {
    has_failed |= !is_configured;
    std::memset(tiles[kTile], 0, sizeof tiles[kTile]);
  }

  template <int kTile>
  static void load(const void* source, int64_t stride) {
    has_failed |= !is_configured;
    for (int i = 0; i < kRows; ++i) {
      const uint8_t* row = static_cast<const uint8_t*>(source) + i * stride;
      if (!readable[0].holds(row, kRowBytes) && !readable[1].holds(row, kRowBytes)) {
        has_failed = true;
        return;
      }
      std::memcpy(tiles[kTile][i], row, kRowBytes);
    }
  }

  template <int kTile>
  static void store(void* target, int64_t stride) {
    has_failed |= !is_configured;
    for (int i = 0; i < kRows; ++i) {
      std::memcpy(static_cast<uint8_t*>(target) + i * stride, tiles[kTile][i], kRowBytes);
    }
  }

  // TDPBSSD, as the "Operation" section of Intel's manual has it.
  template <int kSum, int kA, int kB>
  static void dot() {
    has_failed |= !is_configured;
    for (int m = 0; m < kRows; ++m) {
      for (int n = 0; n < kRowBytes / 4; ++n) {
        int32_t sum;
        std::memcpy(&sum, &tiles[kSum][m][4 * n], sizeof sum);
        for (int k = 0; k < kRowBytes / 4; ++k) {
          for (int i = 0; i < 4; ++i) {
            sum += static_cast<int8_t>(tiles[kA][m][4 * k + i]) *
                   static_cast<int8_t>(tiles[kB][k][4 * n + i]);
          }
        }
        std::memcpy(&tiles[kSum][m][4 * n], &sum, sizeof sum);
      }
    }
  }

  static void add_row(const TileSums& sums, int64_t index, const int32_t* high,
                      const int32_t* mixed, const uint8_t* words, float row_scale) {
    for (int n = 0; n < kPanel; ++n) {
      int32_t word;
      std::memcpy(&word, words + n * sizeof word, sizeof word);
      const float weight_scale = float_of(scale_bits(word));
      sums.add(index + n, add_block_sum(0.0f, high[n], mixed[n], weight_scale, row_scale));
    }
  }
};

constexpr const ProductKernel& kKernel = kProductKernel<AmxKernel<EmulatedTiles>>;

}  // namespace
}  // namespace vllm_fork

// The bytes that digits of some rows take.
extern "C" int64_t digits_bytes(int64_t rows, int64_t outputs, int64_t inputs, int64_t segments) {
  return vllm_fork::kKernel.digits_bytes({outputs, inputs, segments}, rows);
}

// x float [rows, inputs], result float [rows, outputs]. Returns 0, or 1 if a tile was used before
// it was configured or loaded from anywhere but the packed weight and the digits.
extern "C" int product(const float* x, const uint8_t* packed, const int8_t* equalised,
                       const float* bias, uint8_t* digits, float* result, int64_t rows,
                       int64_t outputs, int64_t inputs, int64_t segments) {
  using namespace vllm_fork;
  const ProductShape shape{outputs, inputs, segments};
  EmulatedTiles::readable[0] = {packed, shape.packed_bytes()};
  EmulatedTiles::readable[1] = {digits, kKernel.digits_bytes(shape, rows)};
  EmulatedTiles::has_failed = false;
  kKernel.split_rows(shape, {x, inputs, rows, Format::kFloat32, equalised}, 0, rows, digits);
  const int64_t tiles = kKernel.num_tiles(shape, rows);
  kKernel.multiply(shape, packed, digits, rows, 0, tiles, {result, Format::kFloat32, bias});
  return EmulatedTiles::has_failed ? 1 : 0;
}
