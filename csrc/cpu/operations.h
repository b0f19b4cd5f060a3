// The arithmetic of deterministic mode other than its products: loops over rows of float32, for one
// of several instruction sets.
//
// All implementations give the same bits, those of docs/numerics: operations.md, attention.md and
// states.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/portable/states/state_tasks.h"
#include "portable/attention.h"
#include "portable/functions.h"
#include "portable/number_formats.h"

namespace vllm_fork {

// What a row's normalisation needs besides the row.
struct Norm {
  const float* weight;  // [size], or null for ones
  const float* bias;    // [size], or null for zeros
  float weight_offset;  // is added to the weight: Gemma's is stored without its 1
  float epsilon;
};

// Queries of one sequence that share a head of keys and values, and where these are. Query r is
// token `first_token + r / heads` of the sequence, counted from its start, and head r % heads of
// those that share; queries come in this order.
struct AttentionTask {
  const float* queries;    // [count, head size]
  float* out;              // [count, head size]
  int64_t count;           // at most kMaxQueries
  int64_t first_query;     // of the first of them, counted from `first_token`
  int64_t first_token;
  int64_t heads;
  const ScoreRule* rules;  // [heads]
  const float* sinks;      // [heads], or null
  TileLayout layout;
  const uint8_t* cache;    // of this head in block 0
  int64_t page_stride;     // bytes between blocks
  int64_t page_tiles;      // tiles of a block
  const int32_t* pages;    // the sequence's blocks
};

struct CoefficientRow;  // see attention/attention_scratch.h

constexpr int kMaxQueries = 16;
constexpr int64_t kKeysAtOnce = 64;

struct PortableOperations {
  void (*widen)(Format format, const void* source, float* target, int64_t count);
  void (*narrow)(Format format, const float* source, void* target, int64_t count);
  void (*apply)(Function function, float* x, int64_t count);           // in place
  void (*multiply)(float* x, const float* factors, int64_t count);     // in place
  void (*add)(float* x, const float* summands, int64_t count);         // in place
  void (*divide)(float* x, float divisor, int64_t count);              // in place
  void (*rms_norm)(float* x, const Norm& norm, int64_t size);          // in place
  void (*layer_norm)(float* x, const Norm& norm, int64_t size);        // in place
  // x [2 * half], the pairs (j, half + j) or, interleaved, (2 * j, 2 * j + 1).
  void (*rotate)(float* x, const float* cosines, const float* sines, int64_t half,
                 bool is_interleaved);
  // Makes integers of a row, and returns their scale.
  uint32_t (*quantise)(const float* x, CoefficientRow& row, int64_t size);
  // With attention_scratch_bytes(head size) of memory, at a multiple of 64 bytes.
  void (*attend)(const AttentionTask& task, std::byte* memory);
  // The lowest index among the largest, the first NaN being larger than all.
  int64_t (*argmax)(const float* x, int64_t count);
  // The largest key (see ordered_key.h) of each kKeysAtOnce numbers; the last may be fewer.
  void (*largest_keys)(const float* x, int64_t count, int32_t* keys);
  // x - ln(sum of e^x), in place; NaN everywhere if one is NaN or +infinity, or all are -infinity.
  void (*log_softmax)(float* x, int64_t count);
  // e^(x - largest) in `probabilities`.
  void (*relative_probabilities)(const float* x, float largest, float* probabilities,
                                 int64_t count);
  // The sum of what probabilities count, exact.
  double (*sum_of_counts)(const float* probabilities, int64_t count);
  // x plus Gumbel noise of (seed, position, index), in place; -infinity stays.
  void (*add_noise)(float* x, int64_t seed, int64_t position, int64_t count);
  // With convolution_floats(width) of memory, the others with recurrence_floats.
  void (*convolve)(const ConvolutionTask& task, float* memory);
  void (*scan_mamba2)(const Mamba2Task& task, float* memory);
  void (*scan_delta_rule)(const DeltaRuleTask& task, float* memory);
};

// Each is compiled by its own translation unit with its own instruction set: call its functions
// only after asking the CPU (see isa.h).
extern const PortableOperations portable_operations_scalar;
#if defined(VLLM_FORK_X86)
extern const PortableOperations portable_operations_avx2;
extern const PortableOperations portable_operations_avx512;
extern const PortableOperations portable_operations_avx512vnni;
#endif

}  // namespace vllm_fork
