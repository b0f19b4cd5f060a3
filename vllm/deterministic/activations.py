"""Activations with portable bits; see ``docs/numerics/operations.md``, "Activations"."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.deterministic.elementwise import PortableActivation
from vllm.deterministic.fusion import Source
from vllm.fork_kernels.portable.functions import Function, portable_gated
from vllm.hf_layers.definition.bloom import BloomGELU
from vllm.model_executor.layers.activation import (
    GELU,
    FastGELU,
    GeluAndMul,
    GELUTanh,
    MulAndSilu,
    NewGELU,
    QuickGELU,
    ReLUSquaredActivation,
    SiluAndMul,
)

_FUNCTIONS: dict[type[nn.Module], Function] = {
    nn.ReLU: Function.RELU,
    nn.SiLU: Function.SILU,
    nn.Tanh: Function.TANH,
    nn.Sigmoid: Function.SIGMOID,
    GELU: Function.GELU,
    GELUTanh: Function.GELU_TANH,
    NewGELU: Function.GELU_TANH,
    BloomGELU: Function.GELU_TANH,
    FastGELU: Function.GELU_TANH,
    QuickGELU: Function.QUICK_GELU,
    ReLUSquaredActivation: Function.SQUARED_RELU,
}
"""By exact class: a subclass may compute something else."""


class PortableGatedActivation(nn.Module):
    """A function of one half of each row times the other half.

    Args:
        function: the activation.
        is_gate_first: whether it is applied to the first half.
    """

    def __init__(self, function: Function, is_gate_first: bool = True) -> None:
        super().__init__()
        self.function = function
        self.is_gate_first = is_gate_first
        self._source = Source()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the products of x [..., 2 * d], [..., d], rounded once."""
        if not self.is_gate_first:
            x = torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)
        return self._source.made(
            portable_gated(x.contiguous(), self.function, self._source.consumer)
        )


def portable_activation(layer: nn.Module) -> nn.Module | None:
    """Return what takes the place of an activation; None if `layer` is none that is specified."""
    kind: Any = type(layer)
    if kind is nn.GELU or kind is GeluAndMul:
        approximate: Any = layer.approximate
        function = Function.GELU_TANH if approximate == "tanh" else Function.GELU
        return (PortableActivation if kind is nn.GELU else PortableGatedActivation)(function)
    if kind is SiluAndMul:
        return PortableGatedActivation(Function.SILU)
    if kind is MulAndSilu:
        return PortableGatedActivation(Function.SILU, is_gate_first=False)
    return PortableActivation(_FUNCTIONS[kind]) if kind in _FUNCTIONS else None
