// CUDA's language and what the kernels use of its library, for g++: the sources of the kernels
// compile as C++20 and run on the CPU, bit for bit as on a GPU, with barriers and shuffles that
// really wait (see block_scheduler.h). Tests use it; no part of the library does.
//
// Compile with -ffp-contract=off, and with -U_FORTIFY_SOURCE, whose longjmp knows one stack only.
#pragma once

#include <cmath>

#include "emulation/block_scheduler.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx (::vllm_fork::emulation::Block::current_block->current().index)
#define blockIdx (::vllm_fork::emulation::Block::current_block->block_index)
#define blockDim (::vllm_fork::emulation::Block::current_block->block_dim)
#define gridDim (::vllm_fork::emulation::Block::current_block->grid_dim)

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9, cudaErrorLaunchFailure = 719 };

// --- waiting -----------------------------------------------------------------------------------

using Place = std::source_location;

inline void __syncthreads(const Place& place = Place::current()) {
  vllm_fork::emulation::Block::current_block->wait_at_barrier(place);
}

namespace vllm_fork::emulation {

constexpr unsigned int kAllLanes = 0xffffffffu;

// What each of the 32 lanes of the warp gives, until the lane waits for its warp again: what
// collective instructions are made of.
template <typename T>
const T* exchange(const T& value, const Place& place = Place::current()) {
  return Block::current_block->exchange(value, place);
}

inline void check_all_lanes(unsigned int mask) {
  if (mask != kAllLanes) Block::current_block->fail("A warp's instruction leaves out lanes.");
}

inline int lane() { return Block::current_block->current().lane; }

template <typename T>
T shuffled(unsigned int mask, T value, int from, const Place& place) {
  check_all_lanes(mask);
  return emulation::exchange(value, place)[from];
}

}  // namespace vllm_fork::emulation

inline void __syncwarp(unsigned int mask = vllm_fork::emulation::kAllLanes,
                       const Place& place = Place::current()) {
  vllm_fork::emulation::check_all_lanes(mask);
  vllm_fork::emulation::exchange(0, place);
}

template <typename T>
T __shfl_sync(unsigned int mask, T value, int from, const Place& place = Place::current()) {
  return vllm_fork::emulation::shuffled(mask, value, from & 31, place);
}

template <typename T>
T __shfl_xor_sync(unsigned int mask, T value, int bits, const Place& place = Place::current()) {
  return vllm_fork::emulation::shuffled(mask, value, vllm_fork::emulation::lane() ^ bits, place);
}

// A lane that has none so far ahead keeps its own.
template <typename T>
T __shfl_down_sync(unsigned int mask, T value, unsigned int distance,
                   const Place& place = Place::current()) {
  const int lane = vllm_fork::emulation::lane();
  const int from = lane + static_cast<int>(distance);
  return vllm_fork::emulation::shuffled(mask, value, from < 32 ? from : lane, place);
}

template <typename T>
T __shfl_up_sync(unsigned int mask, T value, unsigned int distance,
                 const Place& place = Place::current()) {
  const int lane = vllm_fork::emulation::lane();
  const int from = lane - static_cast<int>(distance);
  return vllm_fork::emulation::shuffled(mask, value, from >= 0 ? from : lane, place);
}

inline unsigned int __ballot_sync(unsigned int mask, int predicate,
                                  const Place& place = Place::current()) {
  vllm_fork::emulation::check_all_lanes(mask);
  const int* values = vllm_fork::emulation::exchange(predicate, place);
  unsigned int result = 0;
  for (int i = 0; i < 32; ++i) result |= (values[i] != 0 ? 1u : 0u) << i;
  return result;
}

// --- arithmetic --------------------------------------------------------------------------------

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline int __viaddmax_s32(int a, int b, int c) { return std::max(a + b, c); }
inline unsigned int __byte_perm(unsigned int low, unsigned int high, unsigned int which) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  unsigned int result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned int>(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
  }
  return result;
}
inline int __popc(unsigned int a) { return __builtin_popcount(a); }

template <typename To, typename From>
To copy_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline unsigned int __float_as_uint(float a) { return copy_bits<unsigned int>(a); }
inline int __float_as_int(float a) { return copy_bits<int>(a); }
inline float __uint_as_float(unsigned int a) { return copy_bits<float>(a); }
inline float __int_as_float(int a) { return copy_bits<float>(a); }

template <typename T>
T __ldg(const T* address) {
  return *address;
}

// --- launching ---------------------------------------------------------------------------------

namespace vllm_fork {

// A variable that the threads of a block share: garbage at first.
template <typename T>
T& block_shared() {
  static const char key = 0;
  return *reinterpret_cast<T*>(emulation::Block::current_block->static_memory(&key, sizeof(T)));
}

// The memory whose size the launch gives.
template <typename T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulation::Block::current_block->dynamic_memory());
}

}  // namespace vllm_fork

struct cudaFuncAttributes {
  int maxThreadsPerBlock;
};

namespace vllm_fork::emulation {

inline int most_threads_of_kernels = kMostThreads;  // by their code, as the library is asked for it

}  // namespace vllm_fork::emulation

template <typename... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Parameters...)) {
  attributes->maxThreadsPerBlock = vllm_fork::emulation::most_threads_of_kernels;
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

#include "emulation/launches.h"

namespace vllm_fork {

template <typename... Parameters, typename... Arguments>
cudaError_t launch(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t,
                   void (*kernel)(Parameters...), Arguments... arguments) {
  const auto call = [=] { kernel(static_cast<Parameters>(arguments)...); };
  return emulation::add_launch(grid, block, shared_bytes, call, false);
}

}  // namespace vllm_fork
