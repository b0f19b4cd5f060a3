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

_INPUTS = (("gate_proj", "up_proj"), ("gate_up_proj",))
"""The names of layers that compute gate and up."""


class GatedMLPForm(Form):
    """``down_proj(f(gate) * up)``.

    Attributes:
        portable_inputs: the names of one layer that computes gate and up, or of two.
        portable_function: f.
        portable_source: knows what takes its results.
    """

    portable_inputs: tuple[str, ...]
    portable_function: Function
    portable_source: Source
    down_proj: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., hidden_size] of x [..., hidden_size]."""
        source = self.portable_source
        joined = torch.cat([getattr(self, name)(x) for name in self.portable_inputs], dim=-1)
        opened = gated(joined, self.portable_function, source.consumer)
        return self.down_proj(source.made(opened))


def adopt_gated_mlp(module: Any) -> None:
    """Give a gated MLP, and the layers of its input, their forms.

    Known are those with ``gate_proj`` and ``up_proj``, or ``gate_up_proj`` for both, with
    ``down_proj`` and an activation, which compute nothing else.
    """
    function = function_of(getattr(module, "act_fn", getattr(module, "activation_fn", module)))
    names = _inputs_of(module)
    if names is None or function is None:
        return
    layers = [getattr(module, name) for name in names]
    if _is_gated(module, layers, function):
        adopt_together(layers)
        attributes = {"portable_inputs": names, "portable_function": function}
        become(module, GatedMLPForm, portable_source=Source(), **attributes)


def _inputs_of(module: Any) -> tuple[str, ...] | None:
    for names in _INPUTS:
        layers = [getattr(module, name, None) for name in (*names, "down_proj")]
        if all(type(layer) is nn.Linear for layer in layers):
            return names
    return None


def _is_gated(module: Any, inputs: list[nn.Linear], function: Function) -> bool:
    """Return whether a module computes what its form would, as it is asked about a few rows."""
    weight = inputs[0].weight
    rows = rows_of_all_sizes(inputs[0].in_features, weight.dtype, weight.device)
    opened = gated(torch.cat([layer(rows) for layer in inputs], dim=-1), function)
    try:
        computed = module(rows)
    except Exception:  # of any class: it wants more than rows, as Zamba 2's does
        return False
    return largest_difference(computed, module.down_proj(opened)) < TOLERANCE
