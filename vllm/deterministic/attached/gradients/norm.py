"""RMSNorm and LayerNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from vllm.fork_kernels.portable.norm import portable_layer_norm, portable_rms_norm
from vllm.fork_kernels.portable.product import PackedWeight

from .asked import is_asked

__all__ = ["layer_norm", "rms_norm"]


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    weight_offset: float,
    consumer: PackedWeight | None = None,
) -> torch.Tensor:
    """Return `portable_rms_norm` of rows of x [..., size], in its dtype."""
    if is_asked(x, weight):
        return _RMSNorm.apply(x, weight, epsilon, weight_offset)
    return portable_rms_norm(
        x.contiguous(), weight, epsilon, weight_offset=weight_offset, consumer=consumer
    )


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    epsilon: float,
    consumer: PackedWeight | None = None,
) -> torch.Tensor:
    """Return `portable_layer_norm` of rows of x [..., size], in its dtype."""
    if is_asked(x, weight, bias):
        return _LayerNorm.apply(x, weight, bias, epsilon)
    return portable_layer_norm(x.contiguous(), weight, bias, epsilon, consumer=consumer)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float, weight_offset: float
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon, ctx.weight_offset = epsilon, weight_offset
        return portable_rms_norm(x.contiguous(), weight, epsilon, weight_offset=weight_offset)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows, gradient = x.float(), gradient.float()
        scale = (rows.square().mean(-1, keepdim=True) + ctx.epsilon).rsqrt()
        normed = rows * scale
        of_normed = gradient * (weight.float() + ctx.weight_offset)
        of_x = scale * (of_normed - normed * (of_normed * normed).mean(-1, keepdim=True))
        of_weight = (gradient * normed).flatten(0, -2).sum(0).to(weight.dtype)
        return of_x.to(x.dtype), of_weight, None, None


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        epsilon: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon, ctx.bias_dtype = epsilon, None if bias is None else bias.dtype
        return portable_layer_norm(x.contiguous(), weight, bias, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows, gradient = x.float(), gradient.float()
        centred = rows - rows.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + ctx.epsilon).rsqrt()
        normed = centred * scale
        of_normed = gradient if weight is None else gradient * weight.float()
        along = normed * (of_normed * normed).mean(-1, keepdim=True)
        of_x = scale * (of_normed - of_normed.mean(-1, keepdim=True) - along)
        of_weight = of_bias = None
        if weight is not None:
            of_weight = (gradient * normed).flatten(0, -2).sum(0).to(weight.dtype)
        if ctx.bias_dtype is not None:
            of_bias = gradient.flatten(0, -2).sum(0).to(ctx.bias_dtype)
        return of_x.to(x.dtype), of_weight, of_bias, None
