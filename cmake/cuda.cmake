# Adds the CUDA kernels to _fork_C: included by ../CMakeLists.txt for VLLM_TARGET_DEVICE=cuda.

# Device code for every generation from Ampere on, and PTX of the newest for those to come; or for
# what the environment's CUDAARCHS names, which CMake reads when it enables the language.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 100-real 120)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# What the stable ABI offers for CUDA (streams, error messages) is in torch's CUDA library. Without
# one, as on a machine that only compiles, its symbols are found when the library is loaded.
find_library(TORCH_CUDA_LIBRARY torch_cuda PATHS ${torch_roots} PATH_SUFFIXES lib NO_DEFAULT_PATH)
if(TORCH_CUDA_LIBRARY)
  target_link_libraries(_fork_C PRIVATE ${TORCH_CUDA_LIBRARY})
else()
  message(WARNING "The torch under CMAKE_PREFIX_PATH='${CMAKE_PREFIX_PATH}' has no CUDA: "
                  "_fork_C will build, but load only beside one that has.")
endif()

target_sources(_fork_C PRIVATE
  csrc/bindings/attention/portable_attention_cuda.cpp
  csrc/bindings/launches_cuda.cpp
  csrc/bindings/logits/portable_logits_cuda.cpp
  csrc/bindings/logits/seen_tokens_cuda.cpp
  csrc/bindings/product/portable_product_cuda.cpp
  csrc/bindings/rows/portable_rows_cuda.cpp
  csrc/cuda/attention/attention.cu
  csrc/cuda/attention/cache.cu
  csrc/cuda/attention/hopper/prompt_attention.cu
  csrc/cuda/attention/hopper/prompt_attention_64.cu
  csrc/cuda/attention/hopper/prompt_attention_adjusted.cu
  csrc/cuda/attention/hopper/prompt_attention_adjusted_64.cu
  csrc/cuda/logits/logits.cu
  csrc/cuda/logits/seen_tokens.cu
  csrc/cuda/primitives/launch.cu
  csrc/cuda/product/product.cu
  csrc/cuda/rows/functions.cu
  csrc/cuda/rows/norm.cu
  csrc/cuda/rows/rotary.cu)
target_compile_features(_fork_C PRIVATE cuda_std_17)
target_compile_options(_fork_C PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-O3 -fmad=false>)
target_compile_definitions(_fork_C PRIVATE USE_CUDA)
# The runtime is torch's own, libcudart.so.<major>, already in the process: one runtime means one
# notion of the current device. So build with the CUDA major version that torch was built with.
set_target_properties(_fork_C PROPERTIES
  CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}"
  CUDA_RUNTIME_LIBRARY Shared)
target_link_libraries(_fork_C PRIVATE CUDA::cudart)
