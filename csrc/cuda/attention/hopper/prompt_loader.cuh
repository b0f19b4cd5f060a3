// The warpgroup that brings blocks of tokens from the cache to shared memory, a few ahead of those
// that attend to them.
//
// In the cache 16 bytes are 4 elements of 4 tokens; products take 16 elements of a key, and 16 tokens
// of an element of values. So they are copied in words of 4 bytes. A warp has one of the four tiles.
#pragma once

#include "cuda/attention/hopper/prompt_memory.cuh"
#include "cuda/primitives/copy_async.cuh"
#include "cuda/primitives/warp_reduce.cuh"

namespace vllm_fork {

template <int kSize>
struct PromptLoader {
  static_assert(kBlockTiles == kWarpgroup / kWarp);

  const PagedAttention& task;
  const QueryPiece<kPromptRows>& piece;
  SeenTokens seen;
  int lane;
  int own_tile;
  int size;

  __device__ __forceinline__ PromptLoader(const PagedAttention& paged,
                                          const QueryPiece<kPromptRows>& rows,
                                          const SeenTokens& seen_by_any)
      : task(paged),
        piece(rows),
        seen(seen_by_any),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        own_tile(static_cast<int>(threadIdx.x) / kWarp % kBlockTiles),
        size(static_cast<int>(paged.cache.head_size)) {}

  // Copies of a block are on their way while those of the one before are awaited.
  __device__ __forceinline__ void load_all(PromptMemory<kSize>& memory) const {
    BlockCursor at;
    BlockCursor before;
    bool is_reused = false;
    const int32_t first = seen.first / kBlockTokens;
    for (int32_t block = first; block <= seen.last / kBlockTokens; ++block) {
      if (is_reused) memory.is_empty[at.stage].wait(at.parity ^ 1);
      load(block, memory.stages[at.stage]);
      commit_copies();
      if (block > first) {
        wait_for_copies<1>();
        give(memory, before);
      }
      at.advance();
      is_reused = is_reused || at.stage == 0;
    }
    wait_for_copies<0>();
    give(memory, before);
  }

 private:
  static __device__ __forceinline__ void give(PromptMemory<kSize>& memory, BlockCursor& at) {
    show_to_products();
    memory.is_full[at.stage].arrive();
    at.advance();
  }

  __device__ __forceinline__ void load(int32_t block, PromptStage<kSize>& stage) const {
    const FoundTile found(task, piece, seen, block * kBlockTiles + own_tile);
    if (found.digits != nullptr) {
      // Of full rows the loops are unrolled.
      if (size == kSize) {
        load_tile<kSize>(found.digits, kSize, stage);
      } else {
        load_tile<1>(found.digits, size, stage);
      }
    }
    if (own_tile == 0) load_scales(block, stage.scales);
  }

  template <int kUnrolled>
  __device__ __forceinline__ void load_tile(const uint8_t* tile, int elements,
                                            PromptStage<kSize>& stage) const {
    const TileLayout layout{elements};
#pragma unroll
    for (int digit = 0; digit < 2; ++digit) {
      const uint8_t* digits = tile + digit * layout.digits();
      load_keys<kUnrolled>(digits, elements, stage.keys[digit]);
      load_values<kUnrolled>(digits + layout.values(), elements, stage.values[digit]);
    }
  }

  // A warp has 16 elements of 8 tokens at a time, which are in different banks.
  template <int kUnrolled>
  __device__ __forceinline__ void load_keys(const uint8_t* digits, int elements,
                                            typename PromptStage<kSize>::Keys& keys) const {
    const int word = lane / 8;
    const int token = lane % 8 / 2 * 4 + lane % 2;
    const uint8_t* from = digits + TileLayout{elements}.key_place(token, 4 * word);
    uint8_t* to = keys.at(column_of(own_tile, token), 0) + 4 * word;
#pragma unroll kUnrolled
    for (int chunk = 0; chunk < elements / kMatrixBytes; ++chunk) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        copy_word_async(to + keys.place_of(kMatrixRows * pair, chunk),
                        from + chunk * kMatrixBytes * kTileTokens + 2 * pair * 4);
      }
    }
  }

  // A warp has 16 tokens of 8 elements at a time.
  template <int kUnrolled>
  __device__ __forceinline__ void load_values(const uint8_t* digits, int elements,
                                              typename PromptStage<kSize>::Values& values) const {
    const int element = lane % 8;
    const int word = lane / 8;
    const uint8_t* from = digits + word * 4 * elements + element * 4;
    uint8_t* to = values.at(element, own_tile) + 4 * word;
#pragma unroll kUnrolled
    for (int tile = 0; tile < elements / kMatrixRows; ++tile) {
      copy_word_async(to + values.place_of(tile * kMatrixRows, 0), from + tile * kMatrixRows * 4);
    }
  }

  __device__ __forceinline__ void load_scales(int32_t block, BlockScales& scales) const {
    constexpr int kEach = kBlockTokens / kWarp;
    int32_t keys[kEach];
    int32_t values[kEach];
    int32_t largest_key = 0;
    int32_t smallest = static_cast<int32_t>(kInvalidScale);
    int32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = lane + i * kWarp;
      const FoundTile found(task, piece, seen, block * kBlockTiles + token / kTileTokens);
      const bool is_there = found.scales != nullptr;
      const uint8_t* own = found.scales + token % kTileTokens;
      keys[i] = is_there ? own[0] : static_cast<int32_t>(kInvalidScale);
      values[i] = is_there ? own[kTileTokens] : static_cast<int32_t>(kInvalidScale);
      largest_key = larger(largest_key, keys[i]);
      largest = larger(largest, values[i]);
      smallest = values[i] < smallest ? values[i] : smallest;
    }
    largest_key = warp_largest(largest_key);
    largest = warp_largest(largest);
    smallest = warp_reduce(smallest, [](int32_t a, int32_t b) { return a < b ? a : b; });
    constexpr auto kInvalid = static_cast<int32_t>(kInvalidScale);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = lane + i * kWarp;
      const bool is_valid = keys[i] != kInvalid && values[i] != kInvalid;
      scales.key_units[token] =
          is_valid ? unit_of(static_cast<uint32_t>(keys[i])) : float_of(kNanBits);
      scales.values[token] = values[i];
      scales.value_units[token] = power_of_two(values[i] - largest);
    }
    if (lane != 0) return;
    const bool are_valid = largest_key != kInvalid && largest != kInvalid;
    scales.largest_key_unit =
        are_valid ? unit_of(static_cast<uint32_t>(largest_key)) : float_of(kInfinityBits);
    scales.smallest_value = smallest;
    scales.largest_value = largest;
  }
};

}  // namespace vllm_fork
