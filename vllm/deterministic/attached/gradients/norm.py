"""RMSNorm and LayerNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from vllm.fork_kernels.portable.norm import portable_layer_norm, portable_rms_norm
from vllm.fork_kernels.portable.product import PackedWeight

from .operation import Operation

__all__ = ["layer_norm", "rms_norm"]


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    weight_offset: float,
    consumer: PackedWeight | None = None,
) -> torch.Tensor:
    """Return `portable_rms_norm` of rows of x [..., size], in its dtype."""
    return _RMSNorm.of(x, weight, epsilon, weight_offset, consumer)


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    epsilon: float,
    consumer: PackedWeight | None = None,
) -> torch.Tensor:
    """Return `portable_layer_norm` of rows of x [..., size], in its dtype."""
    return _LayerNorm.of(x, weight, bias, epsilon, consumer)


class _RMSNorm(Operation):
    @staticmethod
    def forward(
        x: torch.Tensor,
        weight: torch.Tensor,
        epsilon: float,
        weight_offset: float,
        consumer: PackedWeight | None,
    ) -> torch.Tensor:
        return portable_rms_norm(
            x.contiguous(), weight, epsilon, weight_offset=weight_offset, consumer=consumer
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, weight, ctx.epsilon, ctx.weight_offset, _ = inputs
        ctx.save_for_backward(x, weight)

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
        return of_x.to(x.dtype), of_weight, None, None, None


class _LayerNorm(Operation):
    @staticmethod
    def forward(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        epsilon: float,
        consumer: PackedWeight | None,
    ) -> torch.Tensor:
        return portable_layer_norm(x.contiguous(), weight, bias, epsilon, consumer=consumer)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, weight, bias, ctx.epsilon, _ = inputs
        ctx.save_for_backward(x, weight)
        ctx.bias_dtype = None if bias is None else bias.dtype

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
        return of_x.to(x.dtype), of_weight, of_bias, None, None
