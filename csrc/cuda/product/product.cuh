// The whole product on a GPU: how its work is shared out, what memory it takes, its launches.
#pragma once

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/numbers.cuh"
#include "cuda/product/hopper/multiply_by_warpgroups.cuh"
#include "cuda/product/multiply_rows.cuh"
#include "cuda/product/product.h"
#include "cuda/product/quantise_rows.cuh"

namespace vllm_fork {

// --- tiles for a number of rows -----------------------------------------------------------------
// The more rows, the larger the tiles. Few rows wait for memory: what counts is how much of a
// weight is on its way. Many rows wait for tensor cores and shared memory. Each fits in 99 KiB, but
// those of warpgroups in a Hopper's 227.
template <TensorCores kCores>
using TileOf8 = TileShape<4, 1, 1, 1, 4, 3, 4, false, kCores>;
template <TensorCores kCores>
using TileOf16 = TileShape<4, 1, 1, 2, 4, 3, 3, false, kCores>;
template <TensorCores kCores>
using TileOf32 = TileShape<4, 1, 1, 4, 4, 3, 3, true, kCores>;
template <TensorCores kCores>
using TileOf64 = TileShape<2, 2, 2, 4, 4, 3, 2, true, kCores>;
using TileOfMany = TileShape<4, 2, 2, 6, 2, 3, 1, true, TensorCores::kInt8>;
using TileOfManyBfloat16 = TileShape<4, 2, 2, 4, 2, 3, 1, true, TensorCores::kBfloat16>;
using WarpgroupTileOf64 = WarpgroupTile<8, 12>;
using WarpgroupTileOf96 = WarpgroupTile<12, 8>;
using WarpgroupTileOf128 = WarpgroupTile<16, 6>;

template <class Tile>
inline constexpr int64_t kRowsOf = int64_t{Tile::kAllRowTiles} * kRowsOfTile;

// Whole tiles of many rows; of warpgroups two, so that fewer multiprocessors idle in the end.
inline constexpr int64_t kRowsOfMany = 192;
static_assert(kRowsOfMany % kRowsOf<TileOfMany> == 0);
static_assert(kRowsOfMany % kRowsOf<TileOfManyBfloat16> == 0);
inline constexpr int64_t kRowsOfWarpgroups = 2 * kRowsOf<WarpgroupTileOf128>;

constexpr int64_t aligned(int64_t count, int64_t to) { return divide_up(count, to) * to; }

// Calls function(a tile) and returns what it does. There are three for more rows than kFewRows.
template <TensorCores kCores, class Tile32, class Tile64, class TileOfMore, typename Function>
auto with_tile_of(int64_t rows, const Function& function) {
  if (rows <= 8) return function(TileOf8<kCores>());
  if (rows <= kFewRows) return function(TileOf16<kCores>());
  if (rows <= kRowsOf<Tile32>) return function(Tile32());
  if (rows <= kRowsOf<Tile64>) return function(Tile64());
  return function(TileOfMore());
}

template <typename Function>
auto with_tile(int64_t rows, const Multiprocessors& gpu, const Function& function) {
  using Large = WarpgroupTileOf128;
  using Small = WarpgroupTileOf96;
  using Fewest = WarpgroupTileOf64;
  constexpr auto kInt8 = TensorCores::kInt8;
  constexpr auto kBfloat16 = TensorCores::kBfloat16;
  switch (gpu.cores) {
    case TensorCores::kBfloat16:
      return with_tile_of<kBfloat16, TileOf32<kBfloat16>, TileOf64<kBfloat16>,
                          TileOfManyBfloat16>(rows, function);
    case TensorCores::kInt8Warpgroups:
      // Those that multiply fewer rows which are not there; if none do, those that read less.
      return aligned(rows, kRowsOf<Small>) < aligned(rows, kRowsOf<Large>)
                 ? with_tile_of<kInt8, Fewest, Fewest, Small>(rows, function)
                 : with_tile_of<kInt8, Fewest, Fewest, Large>(rows, function);
    default:
      return with_tile_of<kInt8, TileOf32<kInt8>, TileOf64<kInt8>, TileOfMany>(rows, function);
  }
}

// --- kernels of a tile --------------------------------------------------------------------------
// The kernel, what it has of shared memory, and the floats of pending sums that a block of threads
// has in global memory.
template <class Tile>
struct KernelOf {
  static constexpr size_t kSharedBytes = Tile::kStages * sizeof(Stage<Tile>);
  static constexpr auto kernel() { return multiply_rows_kernel<Tile>; }
  static constexpr int64_t pending(int64_t part_segments) {
    return part_segments > 1 ? kPendingLevels * Tile::kSums * Tile::kThreads : 0;
  }
};

template <int kRowTiles, int kStages>
struct KernelOf<WarpgroupTile<kRowTiles, kStages>> {
  using Tile = WarpgroupTile<kRowTiles, kStages>;
  static constexpr size_t kSharedBytes = sizeof(WarpgroupMemory<Tile>);
  static_assert(kSharedBytes <= 227 * 1024);
  static constexpr auto kernel() { return multiply_by_warpgroups_kernel<Tile>; }
  static constexpr int64_t pending(int64_t part_segments) {
    return part_segments > 1 << kLevelsInShared ? Tile::kSums * Tile::kMultiplying : 0;
  }
};

// --- sharing out --------------------------------------------------------------------------------
// Blocks of threads that a multiprocessor has at once.
template <class Tile>
int64_t resident_blocks(const Multiprocessors& gpu) {
  constexpr int64_t kReserved = 1152;  // of shared memory, by the driver and for is_last_of
  constexpr int64_t kBytes = static_cast<int64_t>(KernelOf<Tile>::kSharedBytes) + kReserved;
  const int64_t fitting = gpu.shared_bytes / kBytes;
  return fitting < 1 ? 1 : least(fitting, Tile::kResident);
}

// Into how many parts to split the segments: as many as there are blocks of threads for at once. On
// an H200 more were slower for every matrix of an 8B Llama, since their sums have to be written,
// read and added.
inline int choose_splits(int64_t tiles, int64_t segments, int64_t at_once) {
  int splits = 1;
  while (2 * splits <= segments && 2 * splits * tiles <= at_once) splits *= 2;
  return splits;
}

// Parts of the workspace, one behind the other.
struct ProductPlan {
  int splits;
  int64_t blocks;  // of threads
  int64_t digits_bytes;
  int64_t counters;  // int32
  int64_t partials;  // float
  int64_t pending;   // float

  int32_t* counters_in(uint8_t* workspace) const {
    return reinterpret_cast<int32_t*>(workspace + digits_bytes);
  }
  int64_t bytes() const { return digits_bytes + 4 * (counters + partials + pending); }
};

constexpr int64_t greatest(int64_t a, int64_t b) { return a < b ? b : a; }

template <class Tile>
ProductPlan plan_of(const ProductShape& shape, int64_t rows, const Multiprocessors& gpu) {
  constexpr int64_t kFour = 4;  // numbers in 16 bytes
  const int64_t tiles = TileGrid<Tile>(shape, rows).tiles();
  const int64_t at_once = gpu.count * resident_blocks<Tile>(gpu);
  ProductPlan plan{};
  plan.splits = gpu.splits > 0 ? static_cast<int>(least(gpu.splits, shape.segments))
                               : choose_splits(tiles, shape.segments, at_once);
  plan.blocks = least(tiles * plan.splits, at_once);
  plan.digits_bytes = RowTiles(shape, rows).bytes();
  plan.counters = plan.splits > 1 ? aligned(tiles * Tile::kTickets, kFour) : 0;
  plan.partials = plan.splits > 1 ? aligned(plan.splits * rows * shape.outputs, kFour) : 0;
  plan.pending = plan.blocks * KernelOf<Tile>::pending(shape.segments / plan.splits);
  return plan;
}

// Many rows are multiplied in equal parts, whose digits stay in the GPU's second cache while they are
// read, and take a bounded amount of memory.
inline int64_t rows_at_once(int64_t rows, const Multiprocessors& gpu) {
  if (rows <= kMostRowsAtOnce) return greatest(rows, 1);
  const bool is_by_warpgroups = gpu.cores == TensorCores::kInt8Warpgroups;
  return aligned(divide_up(rows, divide_up(rows, kMostRowsAtOnce)),
                 is_by_warpgroups ? kRowsOfWarpgroups : kRowsOfMany);
}

inline ProductPlan plan_on(const ProductShape& shape, int64_t rows, const Multiprocessors& gpu) {
  return with_tile(rows, gpu, [&](auto tile) { return plan_of<decltype(tile)>(shape, rows, gpu); });
}

inline int64_t product_workspace(const ProductShape& shape, int64_t rows,
                                 const Multiprocessors& gpu) {
  const int64_t at_once = rows_at_once(rows, gpu);
  const int64_t last = rows - (divide_up(rows, at_once) - 1) * at_once;
  return greatest(plan_on(shape, at_once, gpu).bytes(),
                  plan_on(shape, last, gpu).bytes());  // the last ones may be split more
}

// --- launches -----------------------------------------------------------------------------------
inline cudaError_t quantise(const DigitTarget& target, const ProductRows& x,
                            cudaStream_t stream) {
  return with_number(x.format, [&](auto number) {
    using Number = decltype(number);
    const StoredRows<Number> rows{static_cast<const Number*>(x.data), x.stride};
    return quantise_rows(target, rows, stream);
  });
}

// Multiplies rows whose digits are in the workspace.
template <class Tile>
cudaError_t multiply(const ProductShape& shape, int64_t rows, const uint8_t* packed,
                     uint8_t* workspace, const ProductResult& result, const Multiprocessors& gpu,
                     cudaStream_t stream) {
  const ProductPlan plan = plan_of<Tile>(shape, rows, gpu);
  int32_t* counters = plan.counters_in(workspace);
  auto* partials = reinterpret_cast<float*>(counters + plan.counters);
  const TileGrid<Tile> grid(shape, rows);
  const ProductWork work{
      StepCounts(shape),
      WeightTiles(shape),
      RowTiles(shape, rows),
      rows,
      shape.outputs,
      static_cast<int>(grid.over_rows),
      static_cast<int>(grid.over_outputs),
      plan.splits,
      static_cast<int>(shape.segments) / plan.splits,
      static_cast<int>(grid.tiles()) * plan.splits,
      packed,
      workspace,
      partials,
      counters,
      partials + plan.partials,
      result,
  };
  return launch_dependent(dim3(static_cast<unsigned int>(plan.blocks)), dim3(Tile::kThreads),
                          KernelOf<Tile>::kSharedBytes, stream, KernelOf<Tile>::kernel(), work);
}

// The rows from `first` on, `count` at most.
inline ProductRows some_rows(const ProductRows& x, int64_t first, int64_t count) {
  ProductRows some = x;
  some.data = static_cast<const uint8_t*>(x.data) + first * x.stride * size_of(x.format);
  some.rows = least(count, x.rows - first);
  return some;
}

inline ProductResult some_results(const ProductResult& result, int64_t first, int64_t outputs) {
  ProductResult some = result;
  some.data = static_cast<uint8_t*>(result.data) + first * outputs * size_of(result.format);
  return some;
}

inline cudaError_t multiply_digits(const ProductShape& shape, int64_t rows, const uint8_t* packed,
                                   uint8_t* workspace, const ProductResult& result,
                                   const Multiprocessors& gpu, cudaStream_t stream) {
  return with_tile(rows, gpu, [&](auto tile) {
    return multiply<decltype(tile)>(shape, rows, packed, workspace, result, gpu, stream);
  });
}

inline cudaError_t multiply_rows(const ProductShape& shape, const ProductRows& x,
                                 const uint8_t* packed, uint8_t* workspace,
                                 const ProductResult& result, const Multiprocessors& gpu,
                                 cudaStream_t stream) {
  const int64_t at_once = rows_at_once(x.rows, gpu);
  for (int64_t first = 0; first < x.rows; first += at_once) {
    const ProductRows some = some_rows(x, first, at_once);
    const DigitTarget target = digit_target(shape, some.rows, x.equalised, workspace, gpu);
    cudaError_t error = quantise(target, some, stream);
    if (error != cudaSuccess) return error;
    error = multiply_digits(shape, some.rows, packed, workspace,
                            some_results(result, first, shape.outputs), gpu, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace vllm_fork
