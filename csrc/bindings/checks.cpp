#include "checks.h"

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "../portable/mt19937.h"
#include "../portable/product.h"
#include "../portable/seen_mask.h"

namespace vllm_fork {
namespace {

using torch::headeronly::ScalarType;

constexpr const char* kMark = "mark_seen_tokens";
constexpr const char* kApply = "apply_repetition_penalty";
constexpr const char* kDraw = "draw_tokens";
constexpr const char* kProducts = "row_products";
constexpr const char* kSdpa = "paged_sdpa";
constexpr const char* kStatistics = "channel_statistics";
constexpr const char* kEqualise = "equalising_exponents";
constexpr const char* kPack = "pack_weight";
constexpr const char* kUnpack = "unpack_weight";
constexpr const char* kPortable = "portable_product";
constexpr const char* kPartials = "sum_partials";

// A std::runtime_error becomes Python's RuntimeError. STD_TORCH_CHECK would do the same, but puts
// the source file's path and line before the sentence.
template <typename... Parts>
void check(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::runtime_error(sentence.str());
}

// The name that Python gives to a dtype, for those that a caller may plausibly pass.
std::string dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Char: return "int8";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Bool: return "bool";
    default: return std::string("torch's ") + toString(type);
  }
}

void check_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType expected) {
  check(tensor.scalar_type() == expected, op, ": ", name, " must have dtype ",
        dtype_name(expected), ", but has ", dtype_name(tensor.scalar_type()), ".");
}

void check_dim(const char* op, const char* name, const Tensor& tensor, int64_t dim) {
  check(tensor.dim() == dim, op, ": ", name, " must have ", dim, " dimension(s), but has ",
        tensor.dim(), ".");
}

void check_contiguous(const char* op, const char* name, const Tensor& tensor) {
  check(tensor.is_contiguous(), op, ": ", name, " must be contiguous.");
}

void check_length(const char* op, const char* name, const Tensor& tensor, int64_t length,
                  const char* reference) {
  check(tensor.size(0) == length, op, ": ", name, " must have one entry for each of the ", length,
        " ", reference, ", but has ", tensor.size(0), ".");
}

void check_same_device(const char* op, const char* name, const Tensor& tensor,
                       const Tensor& reference) {
  check(tensor.device() == reference.device(), op, ": ", name,
        " must be on the same device as the tensor that is changed in place.");
}

void check_vector(const char* op, const char* name, const Tensor& tensor,
                  const Tensor& reference) {
  check_dim(op, name, tensor, 1);
  check_contiguous(op, name, tensor);
  check_same_device(op, name, tensor, reference);
}

void check_seen(const char* op, const Tensor& seen) {
  check_dtype(op, "seen", seen, ScalarType::Int);
  check_dim(op, "seen", seen, 2);
  check_contiguous(op, "seen", seen);
}

void check_last_contiguous(const char* op, const char* name, const Tensor& tensor) {
  check_dim(op, name, tensor, 2);
  check(tensor.size(1) <= 1 || tensor.stride(1) == 1, op, ": the last dimension of ", name,
        " must be contiguous, but has stride ", tensor.stride(1), ".");
}

void check_float_rows(const char* op, const char* name, const Tensor& tensor) {
  check_dtype(op, name, tensor, ScalarType::Float);
  check_last_contiguous(op, name, tensor);
}

// Rows may lie apart (a slice of a wider buffer) but not on top of each other.
void check_logits(const Tensor& logits) {
  check_float_rows(kApply, "logits", logits);
  const int64_t rows = logits.size(0);
  const int64_t vocab = logits.size(1);
  check(rows <= 1 || logits.stride(0) >= vocab, kApply,
        ": the rows of logits must not overlap, but their stride is ", logits.stride(0), " for ",
        vocab, " tokens.");
}

// Every token that is read must be in a block that there is.
void check_ranges(const Tensor& blocks, const int64_t* starts, const int64_t* stops,
                  int64_t num_blocks, int64_t block_size) {
  const auto* values = static_cast<const int32_t*>(blocks.data_ptr());
  const int64_t width = blocks.size(1);
  for (int64_t i = 0; i < blocks.size(0); ++i) {
    check(0 <= starts[i] && starts[i] < stops[i] && stops[i] <= width * block_size, kSdpa,
          ": starts[", i, "] and stops[", i, "] must be a range within the ", width * block_size,
          " tokens of its blocks, but are ", starts[i], " and ", stops[i], ".");
    for (int64_t b = starts[i] / block_size; b * block_size < stops[i]; ++b) {
      const int32_t block = values[i * width + b];
      check(0 <= block && block < num_blocks, kSdpa, ": blocks[", i, ", ", b, "] is ", block,
            ", but pages has ", num_blocks, " blocks.");
    }
  }
}

bool is_model_dtype(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Half || type == ScalarType::BFloat16;
}

void check_model_dtype(const char* op, const char* name, ScalarType type) {
  check(is_model_dtype(type), op, ": ", name, " must have dtype float32, float16 or bfloat16, but ",
        "has ", dtype_name(type), ".");
}

void check_result_dtype(const char* op, ScalarType type) {
  check(is_model_dtype(type), op, ": dtype must be float32, float16 or bfloat16, but is ",
        dtype_name(type), ".");
}

void check_weight(const char* op, const Tensor& weight) {
  check_model_dtype(op, "weight", weight.scalar_type());
  check_dim(op, "weight", weight, 2);
  check_contiguous(op, "weight", weight);
  check(weight.size(0) > 0 && weight.size(1) > 0, op, ": weight must not be empty, but is ",
        weight.size(0), " x ", weight.size(1), ".");
}

void check_entries(const char* op, const char* name, const Tensor& tensor, ScalarType type,
                   int64_t length, const char* reference) {
  check_dtype(op, name, tensor, type);
  check_dim(op, name, tensor, 1);
  check_contiguous(op, name, tensor);
  check_length(op, name, tensor, length, reference);
}

void check_exponents(const char* op, const std::optional<Tensor>& exponents, int64_t inputs) {
  if (!exponents) return;
  check_entries(op, "exponents", *exponents, ScalarType::Char, inputs, "input channels");
  const auto* values = exponents->const_data_ptr<int8_t>();
  for (int64_t k = 0; k < inputs; ++k) {
    check(-kMostEqualised <= values[k] && values[k] <= kMostEqualised, op, ": exponents[", k,
          "] must be in -", kMostEqualised, "..", kMostEqualised, ", but is ", int{values[k]}, ".");
  }
}

void check_product_bias(const char* op, const std::optional<Tensor>& bias, int64_t outputs) {
  if (!bias) return;
  check_model_dtype(op, "bias", bias->scalar_type());
  check_dim(op, "bias", *bias, 1);
  check_contiguous(op, "bias", *bias);
  check_length(op, "bias", *bias, outputs, "outputs");
}

void check_shape(const char* op, const ProductShape& shape) {
  check(shape.outputs > 0, op, ": outputs must be above 0, but is ", shape.outputs, ".");
  check(0 < shape.inputs && shape.inputs <= kMostInputs, op,
        ": the number of input channels must be in 1..", kMostInputs, ", but is ", shape.inputs,
        ".");
  const int64_t segments = shape.segments;
  check(segments == 1 || segments == 2 || segments == 4 || segments == 8, op,
        ": segments must be 1, 2, 4 or 8, but is ", segments, ".");
  check(shape.inputs % segments == 0, op, ": segments must divide the ", shape.inputs,
        " input channels, but is ", segments, ".");
}

void check_packed(const char* op, const Tensor& packed, const ProductShape& shape) {
  check_shape(op, shape);
  check_entries(op, "packed", packed, ScalarType::Byte, shape.packed_bytes(),
                "bytes of this shape");
  check(reinterpret_cast<uintptr_t>(packed.data_ptr()) % kPackedAlignment == 0, op,
        ": packed must start at a multiple of ", kPackedAlignment, " bytes.");
}

}  // namespace

void check_mark_seen_tokens(const Tensor& seen, const Tensor& slots, const Tensor& token_ids) {
  check_seen(kMark, seen);
  check_dtype(kMark, "slots", slots, ScalarType::Int);
  check_vector(kMark, "slots", slots, seen);
  const ScalarType token_type = token_ids.scalar_type();
  check(token_type == ScalarType::Int || token_type == ScalarType::Long, kMark,
        ": token_ids must have dtype int32 or int64, but has ", dtype_name(token_type), ".");
  check_vector(kMark, "token_ids", token_ids, seen);
  check_length(kMark, "token_ids", token_ids, slots.size(0), "slots");
}

void check_apply_repetition_penalty(const Tensor& logits, const Tensor& seen, const Tensor& slots,
                                    const Tensor& penalties) {
  check_logits(logits);
  check_seen(kApply, seen);
  check_same_device(kApply, "seen", seen, logits);
  const int64_t words = num_mask_words(logits.size(1));
  check(seen.size(1) == words, kApply, ": seen must have ", words, " words a row for ",
        logits.size(1), " tokens, but has ", seen.size(1), ".");
  check_dtype(kApply, "slots", slots, ScalarType::Int);
  check_vector(kApply, "slots", slots, logits);
  check_length(kApply, "slots", slots, logits.size(0), "rows of logits");
  check_dtype(kApply, "penalties", penalties, ScalarType::Float);
  check_vector(kApply, "penalties", penalties, logits);
  check_length(kApply, "penalties", penalties, logits.size(0), "rows of logits");
}

void check_draw_tokens(const Tensor& probs, const Tensor& states, const Tensor& slots,
                       const Tensor& offsets) {
  check_dtype(kDraw, "states", states, ScalarType::Int);
  check_dim(kDraw, "states", states, 2);
  check_contiguous(kDraw, "states", states);
  check(states.size(1) == kMtStateWords, kDraw, ": states must have ", kMtStateWords,
        " words a row, but has ", states.size(1), ".");
  check_float_rows(kDraw, "probs", probs);
  check_same_device(kDraw, "probs", probs, states);
  check_dtype(kDraw, "slots", slots, ScalarType::Int);
  check_vector(kDraw, "slots", slots, states);
  check_length(kDraw, "slots", slots, probs.size(0), "rows of probs");
  check_dtype(kDraw, "offsets", offsets, ScalarType::Long);
  check_vector(kDraw, "offsets", offsets, states);
  check_length(kDraw, "offsets", offsets, probs.size(0), "rows of probs");
}

void check_row_products(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        bool is_available) {
  check(is_available, kProducts, ": this CPU has no AVX-512.");
  for (const auto& [name, tensor] : {std::pair("x", x), std::pair("weight", weight)}) {
    check_dtype(kProducts, name, tensor, ScalarType::BFloat16);
    check_dim(kProducts, name, tensor, 2);
    check_contiguous(kProducts, name, tensor);
  }
  check(x.size(1) == weight.size(1), kProducts, ": weight must have ", x.size(1),
        " columns, as x has, but has ", weight.size(1), ".");
  check(x.size(1) % 64 == 0, kProducts, ": x must have a multiple of 64 columns, but has ",
        x.size(1), ".");
  if (!bias) return;
  check_dtype(kProducts, "bias", *bias, ScalarType::BFloat16);
  check_dim(kProducts, "bias", *bias, 1);
  check_contiguous(kProducts, "bias", *bias);
  check_length(kProducts, "bias", *bias, weight.size(0), "rows of weight");
}

void check_paged_sdpa(const Tensor& query, const Tensor& pages, const Tensor& blocks,
                      const Tensor& starts, const Tensor& stops, int64_t key_size) {
  check_dim(kSdpa, "query", query, 4);
  check_dim(kSdpa, "pages", pages, 4);
  check_dtype(kSdpa, "pages", pages, query.scalar_type());
  check(query.size(2) == 1, kSdpa, ": query must have 1 token a request, but has ", query.size(2),
        ".");
  check(query.size(3) == key_size, kSdpa, ": query must have heads of key_size ", key_size,
        ", but has heads of ", query.size(3), ".");
  check(key_size < pages.size(3), kSdpa, ": key_size must be less than the ", pages.size(3),
        " columns of pages, but is ", key_size, ".");
  check(pages.stride(3) == 1, kSdpa, ": the last dimension of pages must be contiguous.");
  check_dtype(kSdpa, "blocks", blocks, ScalarType::Int);
  check_dim(kSdpa, "blocks", blocks, 2);
  check_contiguous(kSdpa, "blocks", blocks);
  check_length(kSdpa, "blocks", blocks, query.size(0), "requests of query");
  for (const auto& [name, tensor] : {std::pair("starts", starts), std::pair("stops", stops)}) {
    check_dtype(kSdpa, name, tensor, ScalarType::Long);
    check_dim(kSdpa, name, tensor, 1);
    check_contiguous(kSdpa, name, tensor);
    check_length(kSdpa, name, tensor, query.size(0), "requests of query");
  }
  check_ranges(blocks, static_cast<const int64_t*>(starts.data_ptr()),
               static_cast<const int64_t*>(stops.data_ptr()), pages.size(0), pages.size(2));
}

void check_channel_statistics(const Tensor& weight) { check_weight(kStatistics, weight); }

void check_equalising_exponents(const Tensor& statistics) {
  check_dtype(kEqualise, "statistics", statistics, ScalarType::Long);
  check_dim(kEqualise, "statistics", statistics, 1);
  check_contiguous(kEqualise, "statistics", statistics);
  const auto* values = statistics.const_data_ptr<int64_t>();
  for (int64_t k = 0; k < statistics.size(0); ++k) {
    check(values[k] >= 0, kEqualise, ": statistics[", k, "] must not be negative, but is ",
          values[k], ".");
  }
}

void check_pack_weight(const Tensor& weight, const std::optional<Tensor>& exponents,
                       int64_t segments) {
  check_weight(kPack, weight);
  check_shape(kPack, ProductShape{weight.size(0), weight.size(1), segments});
  check_exponents(kPack, exponents, weight.size(1));
}

void check_unpack_weight(const Tensor& packed, const std::optional<Tensor>& exponents,
                         const ProductShape& shape) {
  check_packed(kUnpack, packed, shape);
  check_exponents(kUnpack, exponents, shape.inputs);
}

void check_portable_product(const Tensor& x, const Tensor& packed,
                            const std::optional<Tensor>& exponents,
                            const std::optional<Tensor>& bias, const ProductShape& shape,
                            ScalarType dtype) {
  check_model_dtype(kPortable, "x", x.scalar_type());
  check_last_contiguous(kPortable, "x", x);
  check_packed(kPortable, packed, shape);
  if (exponents) {
    check_entries(kPortable, "exponents", *exponents, ScalarType::Char, shape.inputs,
                  "input channels");
  }
  check_product_bias(kPortable, bias, shape.outputs);
  check_result_dtype(kPortable, dtype);
}

void check_sum_partials(const Tensor& partials, const std::optional<Tensor>& bias,
                        ScalarType dtype) {
  check_dtype(kPartials, "partials", partials, ScalarType::Float);
  check_dim(kPartials, "partials", partials, 3);
  check_contiguous(kPartials, "partials", partials);
  const int64_t count = partials.size(0);
  check(count == 1 || count == 2 || count == 4 || count == 8, kPartials,
        ": partials must be 1, 2, 4 or 8 sums, but are ", count, ".");
  check_product_bias(kPartials, bias, partials.size(2));
  check_result_dtype(kPartials, dtype);
}

void check_packed_output(int64_t output) {
  check(output < 0, kPack, ": weight[", output,
        "] has a number that is not finite, or that is too great (above 2^45 when equalised).");
}

void check_slot(const char* op, int64_t index, int64_t slot, int64_t num_slots) {
  check(slot < num_slots, op, ": slots[", index, "] is ", slot, ", but seen has ", num_slots,
        " rows.");
}

void check_token(int64_t index, int64_t token, int64_t num_words) {
  check(token < num_words * kTokensPerWord, kMark, ": token_ids[", index, "] is ", token,
        ", but seen has room for ", num_words * kTokensPerWord, " tokens.");
}

void check_penalty(int64_t index, float penalty) {
  check(penalty > 0.0f, kApply, ": penalties[", index, "] must be above 0, but is ", penalty, ".");
}

void check_state_slot(int64_t index, int64_t slot, int64_t num_states) {
  check(slot < num_states, kDraw, ": slots[", index, "] is ", slot, ", but states has ",
        num_states, " rows.");
}

void check_offset(int64_t index, int64_t offset, int64_t first_free) {
  check(offset >= first_free, kDraw, ": offsets[", index, "] is ", offset,
        ", but the numbers before ", first_free, " are behind its state or another row's.");
}

void check_position(int64_t slot, int64_t position) {
  check(position >= 1 && position <= kMtNumbers, kDraw, ": states[", slot,
        "] must have a position in 1..", kMtNumbers, ", but has ", position, ".");
}

}  // namespace vllm_fork
