// The CPU implementation of row_products.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "bindings/checks.h"
#include "bindings/cpu_operators.h"
#include "bindings/formats.h"
#include "cpu/isa.h"
#include "cpu/torch_order/single_row/multiply_rows.h"

namespace vllm_fork {
namespace {

bool has_row_products() { return chosen_isa().row_products != nullptr; }
bool has_row_chains() { return chosen_row_chains() != nullptr; }

}  // namespace

Tensor row_products_into(const Into& into, const Tensor& x, const Tensor& weight,
                         const std::optional<Tensor>& bias, int64_t block) {
  const bool is_there = block ? has_row_chains() : has_row_products();
  check_row_products(x, weight, bias, block, is_there);
  const RowOperands operands{
      static_cast<const uint16_t*>(x.data_ptr()),
      static_cast<const uint16_t*>(weight.data_ptr()),
      bias ? static_cast<const uint16_t*>(bias->data_ptr()) : nullptr,
      x.size(0),
      weight.size(0),
      x.size(1),
      format_of(x),
  };
  Tensor result = into ? *into : torch::stable::new_empty(x, {x.size(0), weight.size(0)});
  auto* target = static_cast<uint16_t*>(result.data_ptr());
  multiply_rows(operands, block, target);
  return result;
}

Tensor transposed_row_products(Tensor x, Tensor weight, int64_t block) {
  check_transposed_row_products(x, weight, block, has_row_chains());
  Tensor result = torch::stable::new_empty(x, {x.size(0), weight.size(1)});
  const RowOperands operands{
      static_cast<const uint16_t*>(x.data_ptr()),
      static_cast<const uint16_t*>(weight.data_ptr()),
      nullptr,
      x.size(0),
      weight.size(1),
      x.size(1),
      format_of(x),
  };
  multiply_transposed(operands, block, static_cast<uint16_t*>(result.data_ptr()));
  return result;
}

Tensor row_products(Tensor x, Tensor weight, std::optional<Tensor> bias, int64_t block) {
  return row_products_into(std::nullopt, x, weight, bias, block);
}

}  // namespace vllm_fork

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CPU, library) {
  library.impl("row_products", TORCH_BOX(&vllm_fork::row_products));
  library.impl("transposed_row_products", TORCH_BOX(&vllm_fork::transposed_row_products));
}

STABLE_TORCH_LIBRARY_IMPL(vllm_fork, CompositeExplicitAutograd, library) {
  library.impl("has_row_products", TORCH_BOX(&vllm_fork::has_row_products));
  library.impl("has_row_chains", TORCH_BOX(&vllm_fork::has_row_chains));
}
