"""Functions of each element, and gates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from vllm.fork_kernels.portable.functions import Function, portable_gated, portable_map
from vllm.fork_kernels.portable.product import PackedWeight

from .asked import is_asked

__all__ = ["elementwise", "gated"]

_FORMULAS: dict[Function, Callable[[torch.Tensor], torch.Tensor]] = {
    Function.TANH: torch.tanh,
    Function.SIGMOID: torch.sigmoid,
    Function.RELU: functional.relu,
    Function.SQUARED_RELU: lambda x: functional.relu(x).square(),
    Function.SILU: functional.silu,
    Function.QUICK_GELU: lambda x: x * torch.sigmoid(1.702 * x),
    Function.GELU: functional.gelu,
    Function.GELU_TANH: partial(functional.gelu, approximate="tanh"),
}
"""Of the functions that models of Transformers apply, in PyTorch."""


def elementwise(
    x: torch.Tensor, function: Function, consumer: PackedWeight | None = None
) -> torch.Tensor:
    """Return `portable_map` of x, of any shape, in its dtype."""
    if is_asked(x):
        return _Elementwise.apply(x, function)
    return portable_map(x.contiguous(), function, consumer)


def gated(
    x: torch.Tensor, function: Function, consumer: PackedWeight | None = None
) -> torch.Tensor:
    """Return `portable_gated` of x [..., 2 * d]: [..., d] in its dtype."""
    if is_asked(x):
        return _Gated.apply(x, function)
    return portable_gated(x.contiguous(), function, consumer)


class _Elementwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, function: Function) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.formula = _FORMULAS[function]
        return portable_map(x.contiguous(), function)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        value = x.float().requires_grad_()
        with torch.enable_grad():
            result = ctx.formula(value)
        (of_x,) = torch.autograd.grad(result, value, gradient.float())
        return of_x.to(x.dtype), None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, function: Function) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.formula = _FORMULAS[function]
        return portable_gated(x.contiguous(), function)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        gate, factor = x.float().chunk(2, dim=-1)
        gate = gate.detach().requires_grad_()
        with torch.enable_grad():
            opened = ctx.formula(gate)
        gradient = gradient.float()
        of_x = torch.empty_like(x)
        of_gate, of_factor = of_x.chunk(2, dim=-1)
        of_gate.copy_(torch.autograd.grad(opened, gate, gradient * factor)[0])
        of_factor.copy_(gradient * opened.detach())
        return of_x, None
