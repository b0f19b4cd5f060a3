// What Hugging Face's layers do around products, each as one operator: PyTorch's formulas, which round
// after every operation.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>

#include "bindings/argument_checks.h"
#include "bindings/cpu_operators.h"
#include "bindings/formats.h"
#include "cpu/team/team.h"
#include "cpu/torch_order/rounded_rows.h"

namespace vllm_fork {
namespace {

constexpr const char* kRotate = "rotate_rounded";
constexpr const char* kAppend = "append_to_pages";
constexpr const char* kNorm = "rms_norm_rounded";
constexpr const char* kGated = "silu_and_mul_rounded";

template <typename Work>
void with_number(const Tensor& tensor, const Work& work) {
  switch (tensor.scalar_type()) {
    case ScalarType::BFloat16: work(Bfloat16{}); break;
    case ScalarType::Half: work(Float16{}); break;
    default: work(float{});
  }
}

// Calls work(first, last) for rows of so many elements, on as many threads as they are worth.
template <typename Work>
void for_rows(int64_t rows, int64_t elements, const Work& work) {
  constexpr int64_t kWorthAThread = 1 << 15;
  const int64_t grain = std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(1, elements));
  share_work(0, rows, grain, work);
}

// --- rotation ------------------------------------------------------------------------------------

Tensor rotated(const Into& into, const Tensor& positions, const Tensor& x, const Tensor& angles,
               const Rotation& by) {
  const int64_t tokens = x.size(0), columns = x.size(1), stride = x.stride(0);
  Tensor result = into ? *into : torch::stable::new_empty(x, {tokens, columns});
  const auto* places = positions.const_data_ptr<int64_t>();
  with_number(x, [&](auto number) {
    using Number = decltype(number);
    const auto* source = static_cast<const Number*>(x.data_ptr());
    const auto* table = static_cast<const Number*>(angles.data_ptr());
    auto* out = static_cast<Number*>(result.data_ptr());
    for_rows(tokens, columns, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        for (int64_t column = 0; column < columns; column += by.head_size) {
          rotate(source + t * stride + column, table + places[t] * 2 * by.half, by,
                 out + t * columns + column);
        }
      }
    });
  });
  return result;
}

void check_rotated(const char* name, const Tensor& x, const Tensor& positions,
                   const Tensor& angles, int64_t head_size) {
  check_portable_type(kRotate, name, x);
  check_dim(kRotate, name, x, 2);
  check(x.stride(1) == 1, kRotate, ": rows of ", name, " must be contiguous.");
  check_length(kRotate, name, x, positions.size(0), "positions");
  check(x.size(1) % head_size == 0, kRotate, ": ", name, " must have heads of ", head_size,
        ", but has ", x.size(1), " columns.");
  check_dtype(kRotate, "cos_sin", angles, x.scalar_type());
}

}  // namespace

std::tuple<Tensor, Tensor> rotate_rounded_into(const Into& into_query, const Into& into_key,
                                               const Tensor& positions, const Tensor& query,
                                               const Tensor& key, const Tensor& cos_sin,
                                               int64_t head_size, bool is_neox) {
  check_dtype(kRotate, "positions", positions, ScalarType::Long);
  check_dim(kRotate, "positions", positions, 1);
  check_contiguous(kRotate, "positions", positions);
  check_dim(kRotate, "cos_sin", cos_sin, 2);
  check_contiguous(kRotate, "cos_sin", cos_sin);
  const Rotation by{head_size, cos_sin.size(1) / 2, is_neox};
  check(0 < by.half && 2 * by.half <= head_size, kRotate, ": cos_sin has ", cos_sin.size(1),
        " columns for heads of ", head_size, ".");
  check_rotated("query", query, positions, cos_sin, head_size);
  check_rotated("key", key, positions, cos_sin, head_size);
  const auto* places = positions.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < positions.size(0); ++t) {
    check(0 <= places[t] && places[t] < cos_sin.size(0), kRotate, ": positions[", t, "] is ",
          places[t], ", and cos_sin has ", cos_sin.size(0), " rows.");
  }
  return {rotated(into_query, positions, query, cos_sin, by),
          rotated(into_key, positions, key, cos_sin, by)};
}

std::tuple<Tensor, Tensor> rotate_rounded(Tensor positions, Tensor query, Tensor key,
                                          Tensor cos_sin, int64_t head_size, bool is_neox) {
  return rotate_rounded_into(std::nullopt, std::nullopt, positions, query, key, cos_sin, head_size,
                             is_neox);
}

namespace {

// --- norms ---------------------------------------------------------------------------------------

// PyTorch's sum of each row, whose order is its own. Its mean is this by the number of columns, too,
// but spends most of its time on how to divide.
Tensor sums_of_rows(const Tensor& x) {
  using torch::stable::detail::from;
  const std::array<int64_t, 1> last{-1};
  const std::optional<torch::headeronly::IntHeaderOnlyArrayRef> dim(last);
  std::array<StableIValue, 4> stack{from(x), from(dim), from(true), from(std::nullopt)};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::sum", "dim_IntList", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

void check_normed(const Tensor& x, const std::optional<Tensor>& residual, const Tensor& weight) {
  check_portable_type(kNorm, "x", x);
  check_dim(kNorm, "x", x, 2);
  check_contiguous(kNorm, "x", x);
  if (residual) {
    check_dtype(kNorm, "residual", *residual, x.scalar_type());
    check_contiguous(kNorm, "residual", *residual);
    check(residual->dim() == 2 && residual->size(0) == x.size(0) &&
              residual->size(1) == x.size(1),
          kNorm, ": residual must have the shape of x.");
  }
  check_dtype(kNorm, "weight", weight, x.scalar_type());
  check_dim(kNorm, "weight", weight, 1);
  check_contiguous(kNorm, "weight", weight);
  check_length(kNorm, "weight", weight, x.size(1), "columns of x");
}

}  // namespace

std::tuple<Tensor, Tensor> rms_norm_rounded_into(const Into& into, const Into& into_total,
                                                 const Into& into_squares, const Tensor& x,
                                                 const std::optional<Tensor>& residual,
                                                 const Tensor& weight, double epsilon) {
  check_normed(x, residual, weight);
  const int64_t rows = x.size(0), columns = x.size(1);
  Tensor squares = into_squares
                       ? *into_squares
                       : torch::stable::new_empty(x, {rows, columns}, ScalarType::Float);
  Tensor total =
      into_total ? *into_total : torch::stable::new_empty(x, {residual ? rows : 0, columns});
  Tensor result = into ? *into : torch::stable::new_empty(x, {rows, columns});
  with_number(x, [&](auto number) {
    using Number = decltype(number);
    const auto* own = static_cast<const Number*>(x.data_ptr());
    const auto* added = residual ? static_cast<const Number*>(residual->data_ptr()) : nullptr;
    const auto* factors = static_cast<const Number*>(weight.data_ptr());
    auto* sums = static_cast<Number*>(total.data_ptr());
    const auto* normed = added != nullptr ? sums : own;
    auto* squared = squares.mutable_data_ptr<float>();
    for_rows(rows, columns, [&](int64_t first, int64_t last) {
      const int64_t begin = first * columns, count = (last - first) * columns;
      if (added != nullptr) add(own + begin, added + begin, count, sums + begin);
      square(normed + begin, count, squared + begin);
    });
    const Tensor summed = sums_of_rows(squares);
    const auto* sum = summed.const_data_ptr<float>();
    auto* out = static_cast<Number*>(result.data_ptr());
    for_rows(rows, columns, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const float mean = sum[row] / static_cast<float>(columns);
        const float factor = 1.0f / std::sqrt(mean + static_cast<float>(epsilon));
        scale(normed + row * columns, factors, columns, factor, out + row * columns);
      }
    });
  });
  return {result, total};
}

std::tuple<Tensor, Tensor> rms_norm_rounded(Tensor x, std::optional<Tensor> residual,
                                            Tensor weight, double epsilon) {
  return rms_norm_rounded_into(std::nullopt, std::nullopt, std::nullopt, x, residual, weight,
                               epsilon);
}

namespace {

// --- gated activations ---------------------------------------------------------------------------

// PyTorch's own function of a contiguous tensor: its bits are what is wanted.
Tensor silu(const Tensor& x) {
  std::array<StableIValue, 1> stack{torch::stable::detail::from(x)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::silu", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// Of rows that are computed at once, [n, 2 * columns]; `gate` is memory of [n, columns].
template <typename Number>
void activate(const Number* x, const Tensor& gate, int64_t columns, Number* out) {
  const int64_t rows = gate.size(0);
  auto* half = static_cast<Number*>(gate.data_ptr());
  for_rows(rows, columns, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      std::memcpy(half + row * columns, x + 2 * row * columns, columns * sizeof(Number));
    }
  });
  const Tensor activated = silu(gate);
  const auto* factors = static_cast<const Number*>(activated.data_ptr());
  for_rows(rows, columns, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      multiply(factors + row * columns, x + (2 * row + 1) * columns, columns, out + row * columns);
    }
  });
}

// Elements of which PyTorch's loops leave no remainder, whatever the dtype and CPU: rows of a
// multiple of so many have the bits that they have with others.
constexpr int64_t kVector = 64;

// Elements from which PyTorch shares work out between threads (at::internal::GRAIN_SIZE).
constexpr int64_t kGrain = 32768;

}  // namespace

bool silu_needs_no_threads(int64_t rows, int64_t columns) {
  const int64_t elements = rows * columns;
  if (elements <= kGrain) return true;
  const int64_t threads =
      std::min<int64_t>(torch::stable::get_num_threads(), (elements + kGrain - 1) / kGrain);
  const int64_t of_a_thread = (elements + threads - 1) / threads;
  return columns % kVector == 0 && of_a_thread % kVector == 0;
}

Tensor silu_and_mul_rounded_into(const Into& into, const Into& into_gate, const Tensor& x) {
  check_portable_type(kGated, "x", x);
  check_dim(kGated, "x", x, 2);
  check_contiguous(kGated, "x", x);
  check(x.size(1) % 2 == 0, kGated, ": x must have an even number of columns, but has ",
        x.size(1), ".");
  const int64_t rows = x.size(0), columns = x.size(1) / 2;
  Tensor gate = into_gate ? *into_gate : torch::stable::new_empty(x, {rows, columns});
  Tensor result = into ? *into : torch::stable::new_empty(x, {rows, columns});
  with_number(x, [&](auto number) {
    using Number = decltype(number);
    const auto* source = static_cast<const Number*>(x.data_ptr());
    auto* out = static_cast<Number*>(result.data_ptr());
    const auto some = [&](int64_t first, int64_t last) {
      Tensor whole = gate;
      activate(source + 2 * first * columns,
               torch::stable::narrow(whole, 0, first, last - first), columns,
               out + first * columns);
    };
    if (leads_team() && columns % kVector == 0) {
      for_rows(rows, 4 * columns, some);
    } else {
      some(0, rows);
    }
  });
  return result;
}

Tensor silu_and_mul_rounded(Tensor x) {
  return silu_and_mul_rounded_into(std::nullopt, std::nullopt, x);
}

namespace {

// --- keys and values -----------------------------------------------------------------------------

void check_appended(const char* name, const Tensor& x, const Tensor& pages, int64_t tokens) {
  check_dtype(kAppend, name, x, pages.scalar_type());
  check_dim(kAppend, name, x, 3);
  check(x.stride(2) == 1, kAppend, ": heads of ", name, " must be contiguous.");
  check(x.size(0) >= tokens && x.size(1) == pages.size(1), kAppend, ": ", name, " must have ",
        tokens, " tokens of ", pages.size(1), " heads, but has ", x.size(0), " of ", x.size(1),
        ".");
}

}  // namespace

void append_to_pages(Tensor pages, Tensor key, Tensor value, Tensor slots) {
  check_dim(kAppend, "pages", pages, 4);
  check(pages.stride(3) == 1, kAppend, ": the last dimension of pages must be contiguous.");
  check_dtype(kAppend, "slots", slots, ScalarType::Long);
  check_dim(kAppend, "slots", slots, 1);
  check_contiguous(kAppend, "slots", slots);
  const int64_t tokens = slots.size(0), heads = pages.size(1), block_size = pages.size(2);
  check_appended("key", key, pages, tokens);
  check_appended("value", value, pages, tokens);
  check(key.size(2) + value.size(2) == pages.size(3), kAppend, ": a key of ", key.size(2),
        " and a value of ", value.size(2), " do not fill ", pages.size(3), " columns.");
  const auto bytes = static_cast<int64_t>(pages.element_size());
  const int64_t key_bytes = key.size(2) * bytes, value_bytes = value.size(2) * bytes;
  const int64_t page = pages.stride(0), of_a_head = pages.stride(1), token = pages.stride(2);
  const int64_t key_row = key.stride(0), key_head = key.stride(1);
  const int64_t value_row = value.stride(0), value_head = value.stride(1);
  auto* target = static_cast<char*>(pages.data_ptr());
  const auto* keys = static_cast<const char*>(key.data_ptr());
  const auto* values = static_cast<const char*>(value.data_ptr());
  const auto* places = slots.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    check(-1 <= places[t] && places[t] < pages.size(0) * block_size, kAppend, ": slots[", t,
          "] is ", places[t], ", and pages have ", pages.size(0) * block_size, ".");
  }
  for_rows(tokens, heads * pages.size(3), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      if (places[t] < 0) continue;  // of a token that is none
      const int64_t place = places[t] / block_size * page + places[t] % block_size * token;
      for (int64_t head = 0; head < heads; ++head) {
        char* own = target + (place + head * of_a_head) * bytes;
        std::memcpy(own, keys + (t * key_row + head * key_head) * bytes, key_bytes);
        std::memcpy(own + key_bytes, values + (t * value_row + head * value_head) * bytes,
                    value_bytes);
      }
    }
  });
}

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("rotate_rounded", TORCH_BOX(&vllm_fork::rotate_rounded));
  library.impl("rms_norm_rounded", TORCH_BOX(&vllm_fork::rms_norm_rounded));
  library.impl("silu_and_mul_rounded", TORCH_BOX(&vllm_fork::silu_and_mul_rounded));
  library.impl("append_to_pages", TORCH_BOX(&vllm_fork::append_to_pages));
}
