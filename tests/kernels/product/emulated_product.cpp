// The CUDA implementation of the portable product as a library of C functions, on a CPU. Those that
// launch kernels say what has gone wrong.
#include "cuda/product/product.cu"
#include "../emulated_launch.h"

namespace {

using namespace vllm_fork;

Format format_numbered(int64_t number) { return static_cast<Format>(number); }

Multiprocessors gpu_of(int64_t processors, int64_t cores, int64_t splits) {
  return {processors, emulation::kMostSharedBytes, static_cast<TensorCores>(cores), splits};
}

}  // namespace

extern "C" {

const char* failure() { return emulation::failure.c_str(); }

// The tensor cores' number, or -1 where failure() says why not.
int64_t chosen_tensor_cores(int64_t major, int64_t has_warpgroups, const char* asked) {
  emulation::failure.clear();
  try {
    return static_cast<int64_t>(choose_tensor_cores(major, has_warpgroups != 0, asked));
  } catch (const std::runtime_error& error) {
    emulation::failure = error.what();
    return -1;
  }
}

// What the library says of code whose kernels can be launched with so many threads.
int64_t has_warpgroups(int64_t most_threads) {
  emulation::most_threads_of_kernels = static_cast<int>(most_threads);
  const bool has = has_warpgroup_products();
  emulation::most_threads_of_kernels = emulation::kMostThreads;
  return has ? 1 : 0;
}

int64_t packed_bytes(int64_t outputs, int64_t inputs, int64_t segments) {
  return packed_weight_bytes({outputs, inputs, segments});
}

int64_t workspace_bytes(int64_t outputs, int64_t inputs, int64_t segments, int64_t rows,
                        int64_t processors, int64_t cores, int64_t splits) {
  return product_workspace_bytes({outputs, inputs, segments}, rows,
                                 gpu_of(processors, cores, splits));
}

int64_t rows_multiplied_at_once(int64_t rows, int64_t cores) {
  return rows_at_once(rows, gpu_of(1, cores, 0));
}

// How some rows, multiplied at once, are shared out: to `found` go the rows and outputs of a tile, the
// splits, the parts of the work, the blocks of threads, and the floats of pending sums.
void plan(int64_t outputs, int64_t inputs, int64_t segments, int64_t rows, int64_t processors,
          int64_t shared_bytes, int64_t cores, int64_t* found) {
  const ProductShape shape{outputs, inputs, segments};
  const Multiprocessors gpu{processors, shared_bytes, static_cast<TensorCores>(cores), 0};
  with_tile(rows, gpu, [&](auto tile) {
    using Tile = decltype(tile);
    const ProductPlan plan = plan_of<Tile>(shape, rows, gpu);
    found[0] = Tile::kAllRowTiles * kRowsOfTile;
    found[1] = Tile::kAllPanels * kOutputs;
    found[2] = plan.splits;
    found[3] = TileGrid<Tile>(shape, rows).tiles() * plan.splits;
    found[4] = plan.blocks;
    found[5] = plan.pending;
  });
}

const char* product(int64_t outputs, int64_t inputs, int64_t segments, int64_t rows,
                    int64_t processors, int64_t cores, int64_t splits, uint64_t seed,
                    const void* x, int64_t stride, int64_t x_format, const uint8_t* packed,
                    const int8_t* exponents, const void* bias, int64_t bias_format, void* result,
                    int64_t result_format, uint8_t* workspace) {
  return emulated(seed, [=] {
    return launch_portable_product(
        {outputs, inputs, segments}, {x, stride, rows, format_numbered(x_format), exponents},
        packed, workspace,
        {result, format_numbered(result_format), bias, format_numbered(bias_format)},
        gpu_of(processors, cores, splits), nullptr);
  });
}

const char* sum(int64_t parts, int64_t rows, int64_t outputs, const float* partials,
                const void* bias, int64_t bias_format, void* result, int64_t result_format) {
  return emulated(1, [=] {
    return launch_sum_partials(
        partials, parts, rows, outputs,
        {result, format_numbered(result_format), bias, format_numbered(bias_format)}, nullptr);
  });
}

const char* pack(int64_t outputs, int64_t inputs, int64_t segments, const void* weight,
                 int64_t format, const int8_t* exponents, uint8_t* packed,
                 unsigned long long* refused) {
  return emulated(1, [=] {
    return launch_pack_weight({outputs, inputs, segments}, {weight, format_numbered(format)},
                              exponents, packed, refused, nullptr);
  });
}

const char* unpack(int64_t outputs, int64_t inputs, int64_t segments, const uint8_t* packed,
                   const int8_t* exponents, float* weight) {
  return emulated(1, [=] {
    return launch_unpack_weight({outputs, inputs, segments}, packed, exponents, weight, nullptr);
  });
}

const char* statistics(int64_t outputs, int64_t inputs, const void* weight, int64_t format,
                       unsigned long long* sums) {
  return emulated(1, [=] {
    return launch_channel_statistics({weight, format_numbered(format)}, outputs, inputs, sums,
                                     nullptr);
  });
}
}
