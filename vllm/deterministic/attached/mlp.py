"""MLPs whose gate multiplies: the activation is not rounded before it does."""

from __future__ import annotations

from copy import copy
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
    (("input_linear",), "output_linear"),
    (("w1", "w3"), "w2"),
)
"""The names of layers that compute gate and up, and of the last one."""

_ACTIVATIONS = ("act_fn", "activation_fn", "activation")
_ADAPTERS = "gate_up_proj_adapter_list"
"""Of Zamba 2, whose layers share an MLP."""


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
        parts = [getattr(self, name)(x) for name in self.portable_layers[0]]
        if (factor := getattr(self, "gate_multiplier", 1.0)) != 1.0:  # Falcon-H1's
            parts[0] = parts[0] * factor
        return self._closed(torch.cat(parts, dim=-1))

    def _closed(self, opened: torch.Tensor) -> torch.Tensor:
        """Return [..., hidden_size] of gates and what they multiply, [..., 2 * intermediate]."""
        source = self.portable_source
        multiplied = source.made(gated(opened, self.portable_function, source.consumer))
        result: torch.Tensor = getattr(self, self.portable_layers[1])(multiplied)
        factor = getattr(self, "down_multiplier", 1.0)
        return result if factor == 1.0 else result * factor


class AdaptedMLPForm(GatedMLPForm):
    """Likewise, with an adapter of each layer that calls it.

    Attributes:
        layer_dic: the number of a layer's adapter.
    """

    layer_dic: dict[int, int]

    def forward(self, x: torch.Tensor, layer_idx: int) -> torch.Tensor:  # type: ignore[override]
        """Return [..., hidden_size] of x [..., hidden_size], for the layer of that index."""
        adapter = getattr(self, _ADAPTERS)[self.layer_dic[layer_idx]]
        (inputs,), _ = self.portable_layers
        return self._closed(getattr(self, inputs)(x) + adapter(x))


def adopt_gated_mlp(module: Any) -> None:
    """Give a gated MLP, and the layers of its input, their forms.

    Known are those with ``gate_proj`` and ``up_proj``, or ``gate_up_proj`` for both, with
    ``down_proj`` and an activation, and other names for the same; with ``w1``, ``w3`` and ``w2``
    and no activation of their own it is SiLU. They compute nothing else.
    """
    names = _layers_of(module)
    if names is None:
        return
    activations = [getattr(module, name) for name in _ACTIVATIONS if hasattr(module, name)]
    function = function_of(activations[0]) if activations else Function.SILU
    form = AdaptedMLPForm if hasattr(module, _ADAPTERS) else GatedMLPForm
    attributes = {"portable_layers": names, "portable_function": function}
    if function is not None and _agrees(module, form, attributes):
        adopt_together([getattr(module, name) for name in names[0]])
        become(module, form, portable_source=Source(), **attributes)


def _layers_of(module: Any) -> tuple[tuple[str, ...], str] | None:
    for inputs, last in _LAYERS:
        layers = [getattr(module, name, None) for name in (*inputs, last)]
        if all(type(layer) is nn.Linear for layer in layers):
            return inputs, last
    return None


def _agrees(module: Any, form: type[GatedMLPForm], attributes: dict[str, Any]) -> bool:
    """Return whether a module computes what its form would, as it is asked about a few rows."""
    trial = copy(module)
    become(trial, form, portable_source=Source(), **attributes)
    inputs = getattr(module, attributes["portable_layers"][0][0])
    weight = inputs.weight
    rows = rows_of_all_sizes(inputs.in_features, weight.dtype, weight.device)
    layer = [next(iter(module.layer_dic))] if hasattr(module, _ADAPTERS) else []
    try:
        computed = module(rows, *layer)
    except Exception:  # of any class: it wants something else
        return False
    return largest_difference(computed, trial(rows, *layer)) < TOLERANCE
