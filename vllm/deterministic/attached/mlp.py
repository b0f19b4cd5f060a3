"""MLPs whose gate multiplies: the activation is not rounded before it does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.deterministic.fusion import Source
from vllm.fork_kernels.portable.functions import Function

from .activation import function_of
from .form import Form, become
from .gradients.functions import gated
from .linear import adopt_together
from .sample import TOLERANCE, largest_difference, rows_of_all_sizes

__all__ = ["GatedMLPForm", "adopt_gated_mlp"]

_LAYERS = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("gate_up_proj",), "down_proj"),
    (("w1", "w3"), "w2"),
)
"""The names of layers that compute gate and up, and of the last one."""


class GatedMLPForm(Form):
    """``down_proj(f(gate) * up)``.

    Attributes:
        portable_layers: the names of one layer that computes gate and up, or of two, and that of
            the last one.
        portable_function: f.
        portable_source: knows what takes its results.
    """

    portable_layers: tuple[tuple[str, ...], str]
    portable_function: Function
    portable_source: Source

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., hidden_size] of x [..., hidden_size]."""
        source = self.portable_source
        inputs, last = self.portable_layers
        joined = torch.cat([getattr(self, name)(x) for name in inputs], dim=-1)
        opened = gated(joined, self.portable_function, source.consumer)
        result: torch.Tensor = getattr(self, last)(source.made(opened))
        return result


def adopt_gated_mlp(module: Any) -> None:
    """Give a gated MLP, and the layers of its input, their forms.

    Known are those with ``gate_proj`` and ``up_proj``, or ``gate_up_proj`` for both, with
    ``down_proj`` and an activation; and those with ``w1``, ``w3`` and ``w2`` and no activation of
    their own, which is SiLU. They compute nothing else.
    """
    names = _layers_of(module)
    if names is None:
        return
    function = _function_of(module)
    *inputs, last = (getattr(module, name) for name in (*names[0], names[1]))
    if function is not None and _is_gated(module, inputs, last, function):
        adopt_together(inputs)
        attributes = {"portable_layers": names, "portable_function": function}
        become(module, GatedMLPForm, portable_source=Source(), **attributes)


def _layers_of(module: Any) -> tuple[tuple[str, ...], str] | None:
    for inputs, last in _LAYERS:
        layers = [getattr(module, name, None) for name in (*inputs, last)]
        if all(type(layer) is nn.Linear for layer in layers):
            return inputs, last
    return None


def _function_of(module: Any) -> Function | None:
    activation = getattr(module, "act_fn", getattr(module, "activation_fn", None))
    return Function.SILU if activation is None else function_of(activation)


def _is_gated(module: Any, inputs: list[nn.Linear], last: nn.Linear, function: Function) -> bool:
    """Return whether a module computes what its form would, as it is asked about a few rows."""
    weight = inputs[0].weight
    rows = rows_of_all_sizes(inputs[0].in_features, weight.dtype, weight.device)
    opened = gated(torch.cat([layer(rows) for layer in inputs], dim=-1), function)
    try:
        computed = module(rows)
    except Exception:  # of any class: it wants more than rows, as Zamba 2's does
        return False
    return largest_difference(computed, last(opened)) < TOLERANCE
