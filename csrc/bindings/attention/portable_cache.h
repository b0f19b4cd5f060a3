// The cache of portable attention as a tensor.
#pragma once

#include "bindings/rows/portable_rows.h"
#include "cpu/portable/attention/attention_scratch.h"

namespace vllm_fork {

// The cache: uint8 [blocks, heads, bytes of a block], see TileLayout.
struct Cache {
  TileLayout layout;
  uint8_t* start;
  int64_t blocks;
  int64_t page_stride;
  int64_t head_stride;
  int64_t page_tiles;

  Cache(const Tensor& cache, int64_t head_size)
      : layout{head_size},
        start(static_cast<uint8_t*>(cache.data_ptr())),
        blocks(cache.size(0)),
        page_stride(cache.stride(0)),
        head_stride(cache.stride(1)),
        page_tiles(cache.size(2) / layout.bytes()) {}

  int64_t block_size() const { return page_tiles * kTileTokens; }

  uint8_t* page(int64_t slot, int64_t head) const {
    return start + slot / block_size() * page_stride + head * head_stride;
  }
  uint8_t* digits(int64_t slot, int64_t head) const {
    return page(slot, head) + slot % block_size() / kTileTokens * layout.digit_bytes();
  }
  uint8_t* scales(int64_t slot, int64_t head) const {
    return page(slot, head) + page_tiles * layout.digit_bytes() +
           slot % block_size() / kTileTokens * layout.scale_bytes();
  }
};

}  // namespace vllm_fork
