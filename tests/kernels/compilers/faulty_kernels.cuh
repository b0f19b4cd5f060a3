// Kernels with one fault each, and one without, that test_cuda_on_host.py runs on the CPU.
#pragma once

#include "cuda/primitives/hopper/bulk_copy.cuh"
#include "cuda/primitives/dependent_launch.cuh"
#include "cuda/primitives/device.cuh"
#include "cuda/primitives/matrix_instructions.cuh"
#include "cuda/primitives/hopper/warpgroup.cuh"

namespace vllm_fork {

constexpr int kThreads = 96;

struct Row {
  int values[kThreads];
};

enum class Fault {
  kNone,
  kNoBarrierBeforeReading,
  kNoBarrierBeforeOverwriting,
  kBarrierOfSome,
  kEarlyExit,
  kNoWarpBarrier,
  kShuffleOfSome,
  kShuffleOfHalf,
  kWriteBeyondShared,
  kWriteBeyondDynamic,
  kReadUnwritten,
  kWrongAddress,
  kNoWait,
  kWrongPhase,
  kFewerBytes,
  kMoreBytes,
  kMoreArrivals,
  kNotAligned,
  kPartOfAUnit,
  kCopyBeyond,
  kNoBeginning,
  kNotShown,
  kNoWaitForKernels,
  kWaitOfSomeForKernels,
  kReadBeforeKernels,
  kWriteBeforeKernels,
};

// Each thread writes 10 times the index of the thread opposite, and once more its own.
template <Fault fault>
__global__ void exchange_with_opposite(int* result) {
  const int i = static_cast<int>(threadIdx.x);
  Row& row = block_shared<Row>();
  if (fault != Fault::kReadUnwritten || i != 5) row.values[i] = 10 * i;
  if (fault == Fault::kEarlyExit && i == 7) return;
  if (fault == Fault::kBarrierOfSome) {
    if (i < 64) __syncthreads();
  } else if (fault != Fault::kNoBarrierBeforeReading) {
    __syncthreads();
  }
  const int64_t far = fault == Fault::kWrongAddress && i == 40 ? int64_t{1} << 44 : 0;
  result[far + i] = row.values[kThreads - 1 - i];
  if (fault != Fault::kNoBarrierBeforeOverwriting) __syncthreads();
  row.values[i + (fault == Fault::kWriteBeyondShared ? 1 : 0)] = i;
  __syncthreads();
  result[i] += row.values[i];
}

// Each warp adds up its lanes' indices, in its own part of dynamic memory and by shuffles.
template <Fault fault>
__global__ void sum_lanes(int* result) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int* own = dynamic_shared<int>() + warp * kWarp;
  own[lane + (fault == Fault::kWriteBeyondDynamic ? 1 : 0)] = lane;
  if (fault != Fault::kNoWarpBarrier) __syncwarp();
  int sum = own[lane ^ 1];
  if (fault == Fault::kShuffleOfSome && lane < 16) return;
  const unsigned int lanes = fault == Fault::kShuffleOfHalf ? 0xffffu : kAllLanes;
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    sum += __shfl_down_sync(lanes, sum, static_cast<unsigned int>(distance));
  }
  sum = __shfl_sync(kAllLanes, sum, 0);
  sum += __popc(__ballot_sync(kAllLanes, lane % 3 == 0));
  result[threadIdx.x] = sum + __shfl_xor_sync(kAllLanes, lane, 3);
}

// Copies what the result is at first, in two pieces, and adds to each number that of the thread
// opposite.
template <Fault fault>
__global__ void copy_opposite(int* result) {
  constexpr int kBytes = kThreads * static_cast<int>(sizeof(int)) / 2;
  const int i = static_cast<int>(threadIdx.x);
  const auto* from = reinterpret_cast<const char*>(result);
  auto* row = dynamic_shared<char>();
  PhaseBarrier& barrier = block_shared<PhaseBarrier>();
  if (i == 0 && fault != Fault::kNoBeginning) barrier.begin(1);
  if (fault != Fault::kNotShown) show_to_products();
  __syncthreads();
  if (i == 0) {
    const int off = fault == Fault::kFewerBytes ? -16 : fault == Fault::kMoreBytes ? 16 : 0;
    barrier.arrive_expecting(2 * kBytes + off);
    if (fault == Fault::kMoreArrivals) barrier.arrive();
    copy_bulk(row, from + (fault == Fault::kNotAligned ? 4 : 0), kBytes, barrier);
    copy_bulk(row + kBytes + (fault == Fault::kCopyBeyond ? 16 : 0), from + kBytes,
              fault == Fault::kPartOfAUnit ? kBytes - 8 : kBytes, barrier);
  }
  if (fault != Fault::kNoWait) barrier.wait(fault == Fault::kWrongPhase ? 1 : 0);
  const int opposite = reinterpret_cast<const int*>(row)[kThreads - 1 - i];
  __syncthreads();
  result[i] += opposite;
}

// Of two numbers for each thread of a launch, moves the second one to where the first is of the next
// thread, and adds the weight.
template <Fault fault>
__global__ void pass_on(int* numbers, const int* weight) {
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  int* from = numbers + threads + i;
  int* to = numbers + (i + 1) % threads;
  const int own = weight[i];
  const int early = *from;
  if (fault == Fault::kWriteBeforeKernels) *to = -1;
  const bool waits = fault != Fault::kNoWaitForKernels &&
                     (fault != Fault::kWaitOfSomeForKernels || threadIdx.x != 7);
  if (waits) wait_for_earlier_kernels();
  *to = (fault == Fault::kReadBeforeKernels ? early : *from) + own;
}

// Moves the first numbers to where the second ones are.
__global__ void move_back(int* numbers) {
  wait_for_earlier_kernels();
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  numbers[threads + i] = numbers[i];
}

// result [16, 8] += a [16, k] * b [8, k], row by row: 32 bytes, or 16 bfloat16 with float32 sums.
template <typename Sum>
__global__ void multiply(const uint32_t* a, const uint32_t* b, Sum* result) {
  const int row = static_cast<int>(threadIdx.x) / 4;
  const int place = static_cast<int>(threadIdx.x) % 4;
  Fragments own;
  for (int i = 0; i < 4; ++i) own.a[i] = a[(row + i % 2 * 8) * 8 + i / 2 * 4 + place];
  for (int i = 0; i < 2; ++i) own.b[i] = b[row * 8 + i * 4 + place];
  Sum sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = result[(row + i / 2 * 8) * 8 + place * 2 + i % 2];
  multiply_add(sums, own);
  for (int i = 0; i < 4; ++i) result[(row + i / 2 * 8) * 8 + place * 2 + i % 2] = sums[i];
}

}  // namespace vllm_fork
