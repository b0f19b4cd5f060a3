#include "bindings/portable_checks.h"

#include <array>
#include <utility>

#include "bindings/formats.h"
#include "portable/attention.h"

namespace vllm_fork {
namespace {

constexpr const char* kMap = "portable_map";
constexpr const char* kGated = "portable_gated";
constexpr const char* kNorm = "portable_norm";
constexpr const char* kTable = "portable_rotary_table";
constexpr const char* kRotate = "portable_rotate";
constexpr const char* kAppend = "portable_append";
constexpr const char* kRotateAppend = "portable_rotate_append";
constexpr const char* kAttention = "portable_attention";
constexpr const char* kTopK = "portable_top_k";
constexpr const char* kFilter = "portable_filter";
constexpr const char* kDraw = "portable_draw";

constexpr int64_t kLargestVocabulary = 1 << 19;  // sums of as many probabilities are exact

constexpr std::array<std::pair<const char*, Function>, 12> kFunctions{{
    {"exp", Function::kExp},
    {"exp2", Function::kExp2},
    {"log", Function::kLog},
    {"tanh", Function::kTanh},
    {"sigmoid", Function::kSigmoid},
    {"erf", Function::kErf},
    {"relu", Function::kRelu},
    {"squared_relu", Function::kSquaredRelu},
    {"silu", Function::kSilu},
    {"quick_gelu", Function::kQuickGelu},
    {"gelu", Function::kGelu},
    {"gelu_tanh", Function::kGeluTanh},
}};

void check_numbers(const char* op, const Tensor& x) {
  check_portable_type(op, "x", x);
  check_contiguous(op, "x", x);
}

void check_norm_parameter(const char* name, const std::optional<Tensor>& parameter,
                          int64_t size) {
  if (!parameter) return;
  check_portable_type(kNorm, name, *parameter);
  check_dim(kNorm, name, *parameter, 1);
  check_contiguous(kNorm, name, *parameter);
  check_length(kNorm, name, *parameter, size, "columns of x");
}

void check_epsilon(double epsilon) {
  check(epsilon >= 0.0, kNorm, ": epsilon must not be negative, but is ", epsilon, ".");
}

void check_heads(const char* op, const char* name, const Tensor& x) {
  check_portable_type(op, name, x);
  check_dim(op, name, x, 3);
  check(x.stride(2) == 1, op, ": the last dimension of ", name, " must be contiguous.");
}

void check_cache(const char* op, const Tensor& cache, int64_t head_size) {
  check(head_size % 16 == 0 && 0 < head_size && head_size <= kLargestHead, op,
        ": heads must have a size that is a multiple of 16 up to ", kLargestHead, ", but have ",
        head_size, ".");
  check_dtype(op, "cache", cache, ScalarType::Byte);
  check_dim(op, "cache", cache, 3);
  const int64_t bytes = TileLayout{head_size}.bytes();
  check(cache.stride(2) == 1, op, ": the last dimension of cache must be contiguous.");
  check(cache.size(2) > 0 && cache.size(2) % bytes == 0, op,
        ": the last dimension of cache must be a multiple of ", bytes,
        ", the bytes of 16 tokens, but is ", cache.size(2), ".");
}

void check_rotated(const char* op, const char* name, const Tensor& x, const Tensor& positions,
                   const Tensor& table) {
  check_heads(op, name, x);
  check_entries(op, "positions", positions, ScalarType::Long, x.size(0),
                (std::string("rows of ") + name).c_str());
  check_matrix(op, "table", table, ScalarType::Float);
  check(table.size(1) % 2 == 0 && table.size(1) <= x.size(2), op,
        ": table must have an even number of columns, at most the ", x.size(2),
        " of a head, but has ", table.size(1), ".");
}

void check_appended(const char* op, const Tensor& keys, const Tensor& values,
                    const Tensor& cache) {
  check_heads(op, "keys", keys);
  check_heads(op, "values", values);
  for (int64_t i = 0; i < 3; ++i) {
    check(keys.size(i) == values.size(i), op, ": values must have the shape of keys.");
  }
  check_cache(op, cache, keys.size(2));
  check(cache.size(1) == keys.size(1), op, ": cache must have the ", keys.size(1),
        " heads of keys, but has ", cache.size(1), ".");
}

}  // namespace

Function function_named(const char* op, const std::string& name) {
  for (const auto& [known, function] : kFunctions) {
    if (name == known) return function;
  }
  check(false, op, ": there is no function '", name, "'.");
  return Function::kExp;
}

void check_map(const Tensor& x) { check_numbers(kMap, x); }

void check_gated(const Tensor& x) {
  check_numbers(kGated, x);
  check(x.dim() >= 1 && x.size(-1) % 2 == 0, kGated,
        ": x must have an even last dimension, a gate and what it is multiplied with.");
}

void check_norm(const Tensor& x, const std::optional<Tensor>& residual,
                const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                double epsilon) {
  check_numbers(kNorm, x);
  check(x.dim() >= 1 && x.size(-1) >= 1, kNorm, ": x must have at least one column.");
  check_norm_parameter("weight", weight, x.size(-1));
  check_norm_parameter("bias", bias, x.size(-1));
  check(weight || !bias, kNorm, ": bias needs a weight.");
  check_epsilon(epsilon);
  if (!residual) return;
  check_dtype(kNorm, "residual", *residual, x.scalar_type());
  check_contiguous(kNorm, "residual", *residual);
  check(residual->numel() == x.numel() && residual->dim() == x.dim(), kNorm,
        ": residual must have the shape of x.");
}

void check_norm_heads(const Tensor& x, const Tensor& weight, double epsilon) {
  check_heads(kNorm, "x", x);
  check_norm_parameter("weight", weight, x.size(2));
  check_epsilon(epsilon);
}

void check_rotary_table(const Tensor& frequencies, int64_t positions) {
  check_dtype(kTable, "frequencies", frequencies, ScalarType::Float);
  check_dim(kTable, "frequencies", frequencies, 1);
  check_contiguous(kTable, "frequencies", frequencies);
  check(positions >= 1, kTable, ": positions must be at least 1, but is ", positions, ".");
}

void check_rotate(const Tensor& x, const Tensor& positions, const Tensor& table) {
  check_rotated(kRotate, "x", x, positions, table);
}

void check_append(const Tensor& keys, const Tensor& values, const Tensor& cache,
                  const Tensor& slots) {
  check_appended(kAppend, keys, values, cache);
  check_entries(kAppend, "slots", slots, ScalarType::Long, keys.size(0), "tokens of keys");
}

void check_rotate_append(const Tensor& query, const Tensor& keys, const Tensor& values,
                         const Tensor& positions, const Tensor& table, const Tensor& cache,
                         const Tensor& slots) {
  check_rotated(kRotateAppend, "query", query, positions, table);
  check_rotated(kRotateAppend, "keys", keys, positions, table);
  check_dtype(kRotateAppend, "keys", keys, query.scalar_type());
  check_appended(kRotateAppend, keys, values, cache);
  check_dtype(kRotateAppend, "slots", slots, ScalarType::Long);
  check_dim(kRotateAppend, "slots", slots, 1);
  check_contiguous(kRotateAppend, "slots", slots);
  check(slots.size(0) <= keys.size(0), kRotateAppend,
        ": slots must not have more entries than the ", keys.size(0), " tokens of keys, but has ",
        slots.size(0), ".");
}

void check_attention(const AttentionArguments& a) {
  check_heads(kAttention, "query", a.query);
  check_cache(kAttention, a.cache, a.query.size(2));
  const int64_t heads = a.query.size(1);
  const int64_t key_heads = a.cache.size(1);
  check(key_heads > 0 && heads % key_heads == 0, kAttention, ": the ", heads,
        " heads of query must be a multiple of the ", key_heads, " heads of cache.");
  check_matrix(kAttention, "pages", a.pages, ScalarType::Int);
  const int64_t sequences = a.pages.size(0);
  check_entries(kAttention, "lengths", a.lengths, ScalarType::Int, sequences, "rows of pages");
  check_entries(kAttention, "query_starts", a.query_starts, ScalarType::Int, sequences + 1,
                "rows of pages and the end");
  if (a.slopes) check_entries(kAttention, "slopes", *a.slopes, ScalarType::Float, heads, "heads");
  if (a.sinks) check_entries(kAttention, "sinks", *a.sinks, ScalarType::Float, heads, "heads");
  check(a.scale >= 0x1p-20 && a.scale <= 0x1p20, kAttention,
        ": scale must be in 2^-20..2^20, but is ", a.scale, ".");
  check(a.window >= 0, kAttention, ": window must not be negative, but is ", a.window, ".");
  check(a.soft_cap == 0.0 || (a.soft_cap >= 0x1p-10 && a.soft_cap <= 0x1p17), kAttention,
        ": soft_cap must be 0 or in 2^-10..2^17, but is ", a.soft_cap, ".");
  check_heads(kAttention, "result", a.result);
  check_dtype(kAttention, "result", a.result, a.query.scalar_type());
  check_contiguous(kAttention, "result", a.result);
  for (int64_t i = 0; i < 3; ++i) {
    check(a.result.size(i) == a.query.size(i), kAttention,
          ": result must have the shape of query.");
  }
}

void check_logits(const char* op, const Tensor& logits) {
  check_portable_type(op, "logits", logits);
  check_dim(op, "logits", logits, 2);
  check(logits.size(1) <= 1 || logits.stride(1) == 1, op,
        ": the last dimension of logits must be contiguous.");
  check(0 < logits.size(1) && logits.size(1) < kLargestVocabulary, op,
        ": logits must have 1..", kLargestVocabulary - 1, " columns, but have ", logits.size(1),
        ".");
}

void check_top_k(const Tensor& logits, int64_t k) {
  check_logits(kTopK, logits);
  check(1 <= k && k <= logits.size(1), kTopK, ": k must be in 1..", logits.size(1), ", but is ",
        k, ".");
}

void check_filter(const Tensor& logits, const Tensor& temperatures, const Tensor& top_k,
                  const Tensor& top_p, const Tensor& min_p) {
  check_logits(kFilter, logits);
  const int64_t rows = logits.size(0);
  constexpr const char* kRows = "rows of logits";
  check_entries(kFilter, "temperatures", temperatures, ScalarType::Float, rows, kRows);
  check_entries(kFilter, "top_k", top_k, ScalarType::Int, rows, kRows);
  check_entries(kFilter, "top_p", top_p, ScalarType::Float, rows, kRows);
  check_entries(kFilter, "min_p", min_p, ScalarType::Float, rows, kRows);
}

void check_draw(const Tensor& logits, const Tensor& seeds, const Tensor& positions) {
  check_logits(kDraw, logits);
  check_entries(kDraw, "seeds", seeds, ScalarType::Long, logits.size(0), "rows of logits");
  check_entries(kDraw, "positions", positions, ScalarType::Long, logits.size(0), "rows of logits");
}

}  // namespace vllm_fork
