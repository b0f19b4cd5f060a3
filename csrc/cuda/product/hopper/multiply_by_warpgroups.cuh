// Digits of many rows times digits of a weight, on Hopper's warpgroups: the fast way, where
// multiply_rows.cuh is the simple one. Both give the bits of docs/numerics/products.md.
//
// Of a block of threads two warpgroups multiply, each for 64 outputs and all rows of a tile, and four
// threads load, also the next tile's digits while the sums of one are written. Nobody waits but for
// digits, and for the memory they go to.
#pragma once

#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/product/hopper/warpgroup_loader.cuh"
#include "cuda/product/hopper/warpgroup_results.cuh"
#include "cuda/product/hopper/warpgroup_sums.cuh"

namespace vllm_fork {

// Of 64 Ki registers of a multiprocessor, the threads that load need few.
inline constexpr int kRegistersOfLoader = 24;
inline constexpr int kRegistersOfSums = 240;

template <class Tile>
__device__ __forceinline__ void multiply_by_warpgroups(const ProductWork& work) {
  static_assert(kRegistersOfLoader * kWarpgroup + kRegistersOfSums * Tile::kMultiplying <=
                64 * 1024);
  auto& memory = *dynamic_shared<WarpgroupMemory<Tile>>();
  const int blocks = static_cast<int>(gridDim.x);
  const int first = static_cast<int>(blockIdx.x);
  WarpgroupLoader<Tile> loader(work, memory);
  if (loader.is_one()) loader.prefetch_weight(first);
  if (threadIdx.x == 0) memory.begin();
  show_to_products();  // and to the copies
  __syncthreads();
  wait_for_earlier_kernels();
  if (threadIdx.x >= Tile::kMultiplying) {
    keep_registers<kRegistersOfLoader>();
    if (!loader.is_one()) return;
    for (int part = first; part < work.parts; part += blocks) loader.load_part(part);
  } else {
    take_registers<kRegistersOfSums>();
    WarpgroupSums<Tile> sums(memory);
    sums.laps.begin();
    for (int part = first; part < work.parts; part += blocks) {
      sums.add_part(work);
      WarpgroupResults<Tile>(work, part, memory).write(sums.tree.own);
      sums.laps.end(5);
    }
    sums.laps.tell(static_cast<int>(threadIdx.x) / kWarpgroup);
  }
}

// The threads with which a kernel may be launched, which the host can ask for: in code without
// products of warpgroups too few for any launch, which then fails before it has begun.
template <class Tile>
inline constexpr int kMostLaunched = kHasWarpgroups ? Tile::kThreads : 1;

template <class Tile>
__global__ void __launch_bounds__(kMostLaunched<Tile>, Tile::kResident)
    multiply_by_warpgroups_kernel(ProductWork work) {
  if constexpr (kHasWarpgroups) {
    multiply_by_warpgroups<Tile>(work);
  } else {
    stop_kernel();
  }
}

// Whether the code that the current GPU has got of this library can multiply such tiles. If there
// is none for it at all, launching a kernel says so.
template <class Tile>
bool can_multiply_by_warpgroups() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, multiply_by_warpgroups_kernel<Tile>) != cudaSuccess) {
    cudaGetLastError();  // no later launch is to blame
    return false;
  }
  return attributes.maxThreadsPerBlock >= Tile::kThreads;
}

}  // namespace vllm_fork
