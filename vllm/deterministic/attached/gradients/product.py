"""Products with a packed weight."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from vllm.deterministic import fusion
from vllm.fork_kernels.portable.product import PackedWeight, portable_product, sum_partials

from .asked import is_asked

__all__ = ["product", "sum_with_share"]


def product(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    packed: PackedWeight,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return ``x W^T + b`` (`portable_product`).

    Args:
        x: float32, bfloat16 or float16 [..., in_features]; the last dimension is contiguous.
        weight: bfloat16 or float16 [out_features, in_features], which gets the gradient; products
            of backward are in its dtype; None if the packed one alone is there, for no gradients.
        bias: [out_features] or None.
        packed: the same weight, packed.
        dtype: of the result; that of `x` if None.

    Returns:
        [..., out_features].
    """
    fusion.takes(packed, x)
    if weight is not None and is_asked(x, weight, bias):
        return _Product.apply(x, weight, bias, packed, dtype)
    return portable_product(x, packed, bias, dtype)


def sum_with_share(
    sums: torch.Tensor, share: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return the product of a layer and what an adapter adds to it, rounded once.

    Args:
        sums: the product without bias, float32 [n, out_features].
        share: the adapter's, likewise.
        bias: [out_features] or None.
        dtype: of the result.

    Returns:
        [n, out_features].
    """
    return _SumWithShare.apply(sums, share, bias, dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        packed: PackedWeight,
        dtype: torch.dtype | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return portable_product(x, packed, bias, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        rows = gradient.flatten(0, -2).to(weight.dtype)
        of_x = (rows @ weight).view(x.shape).to(x.dtype) if needs_x else None
        of_weight = rows.t() @ x.flatten(0, -2).to(weight.dtype) if needs_weight else None
        of_bias = _sum_of_rows(gradient, ctx.bias_dtype) if needs_bias else None
        return of_x, of_weight, of_bias, None, None


class _SumWithShare(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        sums: torch.Tensor,
        share: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        ctx.bias_dtype = None if bias is None else bias.dtype
        return sum_partials(torch.stack((sums, share)), bias, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        of_bias = _sum_of_rows(gradient, ctx.bias_dtype) if ctx.needs_input_grad[2] else None
        wide = gradient.float()
        return wide, wide, of_bias, None


def _sum_of_rows(gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return gradient.flatten(0, -2).sum(0, dtype=torch.float32).to(dtype)
