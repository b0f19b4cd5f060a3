#include "bindings/checks.h"

#include <utility>

#include "bindings/argument_checks.h"
#include "cpu/torch_order/attention/token_attention.h"
#include "portable/mt19937.h"
#include "portable/seen_mask.h"

namespace vllm_fork {
namespace {

constexpr const char* kMark = "mark_seen_tokens";
constexpr const char* kApply = "apply_repetition_penalty";
constexpr const char* kDraw = "draw_tokens";
constexpr const char* kProducts = "row_products";
constexpr const char* kTransposed = "transposed_row_products";
constexpr const char* kSdpa = "paged_sdpa";

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
  check_dtype(kApply, "penalties", penalties, ScalarType::Double);
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
                        int64_t block, bool is_available) {
  check(block >= 0 && block % 2 == 0, kProducts, ": block must be even and not negative, but is ",
        block, ".");
  check(is_available, kProducts, ": this CPU has no ", block ? "AVX512_BF16." : "AVX-512.");
  for (const auto& [name, tensor] : {std::pair("x", x), std::pair("weight", weight)}) {
    if (block) {
      check_dtype(kProducts, name, tensor, ScalarType::BFloat16);
    } else {
      check_16_bits(kProducts, name, tensor);
    }
    check_dim(kProducts, name, tensor, 2);
    check_contiguous(kProducts, name, tensor);
  }
  check_dtype(kProducts, "weight", weight, x.scalar_type());
  check(x.size(1) == weight.size(1), kProducts, ": weight must have ", x.size(1),
        " columns, as x has, but has ", weight.size(1), ".");
  check(!block || x.size(1) % 2 == 0, kProducts, ": x must have a multiple of 2 columns, but has ",
        x.size(1), ".");
  if (!bias) return;
  check_dtype(kProducts, "bias", *bias, x.scalar_type());
  check_dim(kProducts, "bias", *bias, 1);
  check_contiguous(kProducts, "bias", *bias);
  check_length(kProducts, "bias", *bias, weight.size(0), "rows of weight");
}

void check_transposed_row_products(const Tensor& x, const Tensor& weight, int64_t block,
                                   bool is_available) {
  check(block > 0 && block % 2 == 0, kTransposed, ": block must be even and above 0, but is ", block,
        ".");
  check(is_available, kTransposed, ": this CPU has no AVX512_BF16.");
  for (const auto& [name, tensor] : {std::pair("x", x), std::pair("weight", weight)}) {
    check_dtype(kTransposed, name, tensor, ScalarType::BFloat16);
    check_dim(kTransposed, name, tensor, 2);
    check_contiguous(kTransposed, name, tensor);
  }
  check(x.size(1) == weight.size(0), kTransposed, ": weight must have ", x.size(1),
        " rows, as x has columns, but has ", weight.size(0), ".");
  check(x.size(1) % 2 == 0, kTransposed, ": x must have a multiple of 2 columns, but has ",
        x.size(1), ".");
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

void check_token_attention(const Tensor& query, const Tensor& pages, int64_t key_size,
                           bool is_there) {
  if (query.scalar_type() != ScalarType::Float) check_16_bits(kSdpa, "query", query);
  check_contiguous(kSdpa, "query", query);
  check(key_size % kTokenColumns == 0 && pages.size(3) == 2 * key_size, kSdpa,
        ": in_one takes keys and values of the same multiple of ", kTokenColumns,
        " columns, but they have ", key_size, " and ", pages.size(3) - key_size, ".");
  check(pages.size(1) > 0 && query.size(1) % pages.size(1) == 0, kSdpa,
        ": query must have a multiple of the ", pages.size(1), " heads of pages, but has ",
        query.size(1), ".");
  check(is_there, kSdpa, ": this CPU has no instructions for in_one.");
}

void check_slot(const char* op, int64_t index, int64_t slot, int64_t num_slots) {
  check(slot < num_slots, op, ": slots[", index, "] is ", slot, ", but seen has ", num_slots,
        " rows.");
}

void check_token(int64_t index, int64_t token, int64_t num_words) {
  check(token < num_words * kTokensPerWord, kMark, ": token_ids[", index, "] is ", token,
        ", but seen has room for ", num_words * kTokensPerWord, " tokens.");
}

void check_penalty(int64_t index, double penalty) {
  check(penalty > 0.0, kApply, ": penalties[", index, "] must be above 0, but is ", penalty, ".");
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
