"""Products of single bfloat16 rows with a weight on CPU: ``torch.nn.functional.linear`` row by row.

PyTorch multiplies one row by another kernel than several rows, and adds in another order. The
compiled operator has the order of one row for any number of them, and reads the weight once. It is
there on CPUs with AVX-512.
"""

from collections.abc import Callable

import torch

from . import library

__all__ = ["linear_by_row"]

COLUMNS = 64
"""The operator takes multiples of this many columns."""

_row_products: Callable[..., torch.Tensor] | None = None
if library.load() and torch.ops.vllm_fork.has_row_products():
    _row_products = torch.ops.vllm_fork.row_products.default

    @torch.library.register_fake("vllm_fork::row_products")
    def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x.new_empty(x.shape[0], weight.shape[0])


def has_row_products(weight: torch.Tensor) -> bool:
    """Whether the operator can multiply with a weight [out_features, in_features] on this CPU."""
    return (
        _row_products is not None
        and weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and weight.shape[1] % COLUMNS == 0
    )


def linear_by_row(weight: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return ``f(x, weight, bias)`` that is ``functional.linear`` of each row of ``x`` by itself.

    Args:
        weight: [out_features, in_features], on CPU; the one that the function will be called with,
            or one of its shape and dtype. It is tried on a few rows whether the operator gives
            PyTorch's bits here, since PyTorch takes its kernel by CPU and shape.

    Returns:
        a function of x, [n, in_features], the weight, and a bias, [out_features], or None; it
        returns [n, out_features]. All have the dtype of the weight.
    """
    if not has_row_products(weight):
        return _one_by_one
    generator = torch.Generator().manual_seed(weight.shape[0])
    rows = torch.randn(8, weight.shape[1], generator=generator).to(weight.dtype)
    bias = torch.randn(weight.shape[0], generator=generator).to(weight.dtype)
    same = all(
        torch.equal(_with_operator(rows, weight, b), _one_by_one(rows, weight, b))
        for b in (None, bias)
    )
    return _with_operator if same else _one_by_one


def _with_operator(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    assert _row_products is not None
    return _row_products(x.contiguous(), weight, bias)


def _one_by_one(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if x.shape[0] == 0:
        return x.new_empty(0, weight.shape[0])
    return torch.cat([torch.nn.functional.linear(row, weight, bias) for row in x.split(1)])
