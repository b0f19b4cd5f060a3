// The CPU implementation of ordered_products.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "bindings/cpu_operators.h"
#include "bindings/product/sum_order.h"
#include "cpu/isa.h"
#include "cpu/torch_order/single_row/multiply_in_order.h"

namespace vllm_fork {
namespace {

constexpr const char* kOrdered = "ordered_products";

void check_ordered(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  check(chosen_ordered_products() != nullptr, kOrdered, ": this CPU has no AVX-512.");
  for (const auto& [name, tensor] : {std::pair("x", x), std::pair("weight", weight)}) {
    check_dtype(kOrdered, name, tensor, ScalarType::Float);
    check_dim(kOrdered, name, tensor, 2);
  }
  check_contiguous(kOrdered, "x", x);
  check(x.size(1) == weight.size(1), kOrdered, ": weight must have ", x.size(1),
        " columns, as x has, but has ", weight.size(1), ".");
  if (!bias) return;
  check_dtype(kOrdered, "bias", *bias, ScalarType::Float);
  check_dim(kOrdered, "bias", *bias, 1);
  check_contiguous(kOrdered, "bias", *bias);
  check_length(kOrdered, "bias", *bias, weight.size(0), "rows of weight");
}

}  // namespace

Tensor ordered_products_into(const Into& into, const Tensor& x, const Tensor& weight,
                             const std::optional<Tensor>& bias, const Tensor& order) {
  check_ordered(x, weight, bias);
  const int64_t rows = x.size(0), outputs = weight.size(0), size = x.size(1);
  OrderRows order_rows(kOrdered, order);
  const std::vector<SumRange> ranges = order_rows.ranges(outputs, size, bias.has_value());
  check(order_rows.is_at_end(), kOrdered, ": order has more rows than those of ", outputs,
        " outputs.");
  Tensor result = into ? *into : torch::stable::new_empty(x, {rows, outputs});
  multiply_in_order({static_cast<const float*>(x.data_ptr()), rows, size,
                     static_cast<const float*>(weight.data_ptr()), outputs, weight.stride(0),
                     weight.stride(1),
                     bias ? static_cast<const float*>(bias->data_ptr()) : nullptr},
                    ranges, static_cast<float*>(result.data_ptr()));
  return result;
}

Tensor ordered_products(Tensor x, Tensor weight, std::optional<Tensor> bias, Tensor order) {
  return ordered_products_into(std::nullopt, x, weight, bias, order);
}

namespace {
bool has_ordered_products() { return chosen_ordered_products() != nullptr; }
}  // namespace

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("ordered_products", TORCH_BOX(&vllm_fork::ordered_products));
}

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CompositeExplicitAutograd, library) {
  library.impl("has_ordered_products", TORCH_BOX(&vllm_fork::has_ordered_products));
}
