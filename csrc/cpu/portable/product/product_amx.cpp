// AMX: the tiles of the CPU.
#include "cpu/portable/product/product_amx.h"

#include <immintrin.h>

#include "cpu/portable/product/avx512_block.h"

namespace vllm_fork {
namespace {
namespace amx {

// The operand of LDTILECFG (Intel SDM, volume 1, "TILECFG").
struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

// Assembly, since the compilers' intrinsics take a tile's number as a literal only.
struct Tiles {
  struct Session {
    Session() {
      const TileConfiguration configuration;
      _tile_loadconfig(&configuration);
    }
    ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  template <int kTile>
  VLLM_FORK_INLINE static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  VLLM_FORK_INLINE static void load(const void* source, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(source), "r"(stride), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  VLLM_FORK_INLINE static void store(void* target, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(target), "r"(stride), "i"(kTile)
                 : "memory");
  }
  template <int kSum, int kA, int kB>
  VLLM_FORK_INLINE static void dot() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }

  VLLM_FORK_INLINE static void add_row(const TileSums& sums, int64_t index, const int32_t* high,
                                       const int32_t* mixed, const uint8_t* words,
                                       float row_scale) {
    const __m512i highs = _mm512_slli_epi32(_mm512_load_si512(high), 8);
    const __m512i block = _mm512_add_epi32(highs, _mm512_load_si512(mixed));
    avx512_add_scaled(sums, index, block, avx512_scales(_mm512_load_si512(words)), row_scale);
  }
};

// A tile costs the same for one row as for 16; so few rows are faster without.
constexpr int64_t kRowsWithoutTiles = 4;

}  // namespace amx
}  // namespace

const ProductKernel& product_kernel_amx(int64_t rows) {
  if (rows <= amx::kRowsWithoutTiles) return product_kernel_avx512vnni(rows);
  return kProductKernel<AmxKernel<amx::Tiles>>;
}

}  // namespace vllm_fork
