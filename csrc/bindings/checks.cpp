#include "checks.h"

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "../portable/mt19937.h"
#include "../portable/seen_mask.h"

namespace vllm_fork {
namespace {

using torch::headeronly::ScalarType;

constexpr const char* kMark = "mark_seen_tokens";
constexpr const char* kApply = "apply_repetition_penalty";
constexpr const char* kDraw = "draw_tokens";
constexpr const char* kProducts = "row_products";

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

void check_float_rows(const char* op, const char* name, const Tensor& tensor) {
  check_dtype(op, name, tensor, ScalarType::Float);
  check_dim(op, name, tensor, 2);
  check(tensor.size(1) <= 1 || tensor.stride(1) == 1, op, ": the last dimension of ", name,
        " must be contiguous, but has stride ", tensor.stride(1), ".");
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
