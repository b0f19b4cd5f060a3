// As much of CUDA's runtime as csrc/cuda/primitives/launch.cu needs, for g++: of GPUs that tests
// describe, and which count how often they are asked.
#pragma once

#include <atomic>
#include <cstddef>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
using cudaStream_t = void*;

struct dim3 {};
struct cudaFuncAttributes {
  int maxThreadsPerBlock;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned int numAttrs;
};

// A GPU, whose code can be launched with so many threads.
struct Gpu {
  int capability;
  int code_threads;
  size_t largest_shared;
  bool is_mute;  // whoever asks gets an error
  std::atomic<int> times_asked;
  size_t last_allowed;  // of any kernel
};

inline Gpu gpus[4];
inline thread_local int current_gpu = 0;

inline cudaError_t asked(Gpu& gpu) {
  ++gpu.times_asked;
  return gpu.is_mute ? cudaErrorInvalidValue : cudaSuccess;
}

inline cudaError_t cudaGetDevice(int* number) {
  *number = current_gpu;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int number) {
  const int capability = gpus[number].capability;
  *value = name == cudaDevAttrComputeCapabilityMajor ? capability / 10 : capability % 10;
  return asked(gpus[number]);
}

template <typename... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Parameters...)) {
  attributes->maxThreadsPerBlock = gpus[current_gpu].code_threads;
  return asked(gpus[current_gpu]);
}

inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  Gpu& gpu = gpus[current_gpu];
  const auto size = static_cast<size_t>(bytes);
  if (asked(gpu) != cudaSuccess || size > gpu.largest_shared) return cudaErrorInvalidValue;
  gpu.last_allowed = size;
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

template <typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t*, Arguments...) {
  return cudaSuccess;
}
