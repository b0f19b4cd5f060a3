// What both programs of this folder need: memory on the GPU, and a kernel's time and cycles.
//
//   for kernel in product attention; do
//     nvcc -std=c++17 -O3 -fmad=false -gencode=arch=compute_90a,code=sm_90a -cudart static \
//       -DVLLM_FORK_CLOCKS -Icsrc benchmarks/gpu/clocks/$kernel.cu csrc/cuda/primitives/launch.cu -o $kernel
//   done
//
// They run on a Hopper, need neither Python nor PyTorch there, and take two seconds. Numbers are noise,
// and bits are not looked at: benchmarks.gpu.bits does that. Shapes are Llama-3.1-8B's. Without
// -DVLLM_FORK_CLOCKS the kernels are those of the distribution, and only times are printed.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cuda/primitives/laps.cuh"

namespace vllm_fork {
namespace {

constexpr int kTimes = 10;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("error: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <typename T>
class OnGpu {
 public:
  explicit OnGpu(size_t count) : count_(count) { check(cudaMalloc(&data_, bytes())); }
  explicit OnGpu(const std::vector<T>& values) : OnGpu(values.size()) {
    check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~OnGpu() { cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  T* data() const { return data_; }
  size_t bytes() const { return std::max<size_t>(count_, 1) * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t count_;
};

// Bytes without a pattern; 16-bit numbers about 1 where `are_numbers`.
__global__ void fill(uint8_t* bytes, size_t count, bool are_numbers) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += step) {
    const auto noise = static_cast<uint8_t>(i * 2654435761u >> 13);
    bytes[i] = are_numbers && i % 2 == 1 ? static_cast<uint8_t>(0x3f | (noise & 0x80)) : noise;
  }
}

void fill_all(const OnGpu<uint8_t>& memory, bool are_numbers = false) {
  fill<<<1024, 256>>>(memory.data(), memory.bytes(), are_numbers);
}

template <typename Launch>
void measure(const char* what, const std::vector<const char*>& phases, const Launch& launch) {
  cudaEvent_t begin;
  cudaEvent_t end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) check(launch());
  check(cudaEventRecord(begin));
  for (int i = 0; i < kTimes; ++i) check(launch());
  check(cudaEventRecord(end));
  check(cudaEventSynchronize(end));
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end));
  std::printf("%-40s %8.1f us", what, milliseconds / kTimes * 1e3);
#if defined(VLLM_FORK_CLOCKS)
  unsigned int told[kMostGroups][kMostPhases + 1];
  check(cudaMemcpyFromSymbol(told, told_laps, sizeof told));
  for (size_t i = 0; i < phases.size() && told[0][kMostPhases] > 0; ++i) {
    std::printf("%s %s %.0f", i == 0 ? "; cycles:" : ",", phases[i],
                double{1} * told[0][i] / told[0][kMostPhases]);
  }
#else
  static_cast<void>(phases);
#endif
  std::printf("\n");
}

}  // namespace
}  // namespace vllm_fork
