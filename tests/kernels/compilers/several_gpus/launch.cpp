// What the library asks of GPUs before it launches kernels, as C functions.
#include "cuda/primitives/launch.cu"

using namespace vllm_fork;

extern "C" {

void describe(int gpu, int capability, int code_threads, size_t largest_shared, bool is_mute) {
  gpus[gpu].capability = capability;
  gpus[gpu].code_threads = code_threads;
  gpus[gpu].largest_shared = largest_shared;
  gpus[gpu].is_mute = is_mute;
}

int times_asked(int gpu) { return gpus[gpu].times_asked; }

size_t last_allowed(int gpu) { return gpus[gpu].last_allowed; }

bool begins_early(int gpu) {
  current_gpu = gpu;
  return may_begin_early();
}

const char* reason(int gpu) {
  thread_local std::string sentence;
  current_gpu = gpu;
  sentence = reason_to_begin_in_turn();
  return sentence.c_str();
}

// Of a kernel that begins at this address.
bool is_allowed(int gpu, size_t kernel, size_t bytes) {
  current_gpu = gpu;
  return allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes) == cudaSuccess;
}

}  // extern "C"
