"""MLPs whose gate multiplies: the activation is not rounded before it does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.deterministic.fusion import Source
from vllm.fork_kernels.portable.functions import Function, portable_gated

from .activation import function_of
from .linear import PortableLinear, pack_together
from .sample import TOLERANCE, difference, sample_rows


class PortableGatedMLP(nn.Module):
    """``down(f(gate(x)) * up(x))``.

    Args:
        gate_and_up: one layer that computes both, or two.
        down: the last layer.
        function: f.
    """

    def __init__(self, gate_and_up: list[nn.Module], down: nn.Module, function: Function) -> None:
        super().__init__()
        self.gate_and_up = nn.ModuleList(gate_and_up)
        self.down_proj = down
        self.function = function
        self._source = Source()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., hidden_size] of x [..., hidden_size]."""
        halves = [layer(x) for layer in self.gate_and_up]
        joined = torch.cat(halves, dim=-1)
        gated = portable_gated(joined, self.function, self._source.consumer)
        return self.down_proj(self._source.made(gated))


def portable_gated_mlp(module: Any) -> PortableGatedMLP | None:
    """Return the portable form of a gated MLP; None if `module` is none that is known.

    Known are those with ``gate_proj`` and ``up_proj``, or ``gate_up_proj`` for both, with
    ``down_proj`` and an activation, which compute nothing else.
    """
    layers = _layers(module)
    function = function_of(getattr(module, "act_fn", getattr(module, "activation_fn", module)))
    if layers is None or function is None:
        return None
    weight = layers[0].weight
    rows = sample_rows(layers[0].in_features, weight.dtype, weight.device)
    expected = module(rows)
    *gate_and_up, down = layers
    packed = zip(pack_together(gate_and_up), gate_and_up, strict=True)
    mlp = PortableGatedMLP(
        [PortableLinear(weight, layer.bias) for weight, layer in packed],
        PortableLinear(pack_together([down])[0], down.bias),
        function,
    )
    return mlp if difference(expected, mlp(rows)) < TOLERANCE else None


def _layers(module: Any) -> list[nn.Linear] | None:
    for names in (("gate_proj", "up_proj", "down_proj"), ("gate_up_proj", "down_proj")):
        layers = [getattr(module, name, None) for name in names]
        if all(type(layer) is nn.Linear for layer in layers):
            return layers  # type: ignore[return-value]
    return None
