// Runs the kernels of faulty_kernels.cuh: built as a library by test_cuda_on_host.py.
#include "faulty_kernels.cuh"
#include "../emulated_launch.h"

namespace vllm_fork {
namespace {

using Kernel = void (*)(int*);

constexpr Kernel kKernels[] = {
    exchange_with_opposite<Fault::kNone>,
    exchange_with_opposite<Fault::kNoBarrierBeforeReading>,
    exchange_with_opposite<Fault::kNoBarrierBeforeOverwriting>,
    exchange_with_opposite<Fault::kBarrierOfSome>,
    exchange_with_opposite<Fault::kEarlyExit>,
    exchange_with_opposite<Fault::kWriteBeyondShared>,
    exchange_with_opposite<Fault::kReadUnwritten>,
    exchange_with_opposite<Fault::kWrongAddress>,
    sum_lanes<Fault::kNone>,
    sum_lanes<Fault::kNoWarpBarrier>,
    sum_lanes<Fault::kShuffleOfSome>,
    sum_lanes<Fault::kShuffleOfHalf>,
    sum_lanes<Fault::kWriteBeyondDynamic>,
    copy_opposite<Fault::kNone>,
    copy_opposite<Fault::kNoWait>,
    copy_opposite<Fault::kWrongPhase>,
    copy_opposite<Fault::kFewerBytes>,
    copy_opposite<Fault::kMoreBytes>,
    copy_opposite<Fault::kMoreArrivals>,
    copy_opposite<Fault::kNotAligned>,
    copy_opposite<Fault::kPartOfAUnit>,
    copy_opposite<Fault::kCopyBeyond>,
    copy_opposite<Fault::kNoBeginning>,
    copy_opposite<Fault::kNotShown>,
};

using Passing = void (*)(int*, const int*);

constexpr Passing kPassing[] = {
    pass_on<Fault::kNone>,
    pass_on<Fault::kNoWaitForKernels>,
    pass_on<Fault::kWaitOfSomeForKernels>,
    pass_on<Fault::kReadBeforeKernels>,
    pass_on<Fault::kWriteBeforeKernels>,
};

}  // namespace
}  // namespace vllm_fork

// Returns what the emulation says has gone wrong: nothing, most often.
extern "C" const char* run_kernel(int kernel, int* result, uint64_t seed) {
  using namespace vllm_fork;
  emulation::failure.clear();
  emulation::schedule_seed = seed;
  launch(1, kThreads, kThreads * sizeof(int), nullptr, kKernels[kernel], result);
  return emulation::failure.c_str();
}

// Passes numbers on, and moves them back, some times.
extern "C" const char* run_passing(int kernel, int* numbers, const int* weight, int blocks,
                                   int times, uint64_t seed) {
  using namespace vllm_fork;
  return emulated(seed, [=] {
    const auto grid = static_cast<unsigned int>(blocks);
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < times && error == cudaSuccess; ++i) {
      error = launch_dependent(grid, kWarp, 0, nullptr, kPassing[kernel], numbers, weight);
      if (error != cudaSuccess) return error;
      error = launch_dependent(grid, kWarp, 0, nullptr, move_back, numbers);
    }
    return error;
  });
}

extern "C" void run_multiply(const uint32_t* a, const uint32_t* b, int* result) {
  using namespace vllm_fork;
  emulation::failure.clear();
  launch(1, kWarp, 0, nullptr, multiply<int>, a, b, result);
}

extern "C" void run_multiply_bfloat16(const uint32_t* a, const uint32_t* b, float* result) {
  using namespace vllm_fork;
  emulation::failure.clear();
  launch(1, kWarp, 0, nullptr, multiply<float>, a, b, result);
}

// The error of a launch with these sizes.
extern "C" int launch_error(unsigned int blocks, unsigned int threads) {
  using namespace vllm_fork;
  int result[kThreads];
  return launch(blocks, threads, 0, nullptr, exchange_with_opposite<Fault::kNone>, result);
}
