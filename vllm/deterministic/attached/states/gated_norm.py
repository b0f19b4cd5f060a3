"""Norms with a gate: which kind one is, is found by asking it."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import nn

from vllm.fork_kernels.portable.states import portable_gated_rms_norm

from ..form import Form, become
from ..sample import TOLERANCE, largest_difference, sample_rows

__all__ = ["GatedNormForm", "adopt_gated_norm"]


class GatedNormForm(Form):
    """RMSNorm with a gate.

    Attributes:
        portable_options: of `portable_gated_rms_norm`.
        weight: None for no norm at all.
    """

    portable_options: dict[str, Any]
    weight: nn.Parameter | None

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return the gated norm of the rows of x [..., size], in its dtype; gate is like x."""
        weight = getattr(self, "weight", None)
        return portable_gated_rms_norm(x, gate, weight, **self.portable_options)


def adopt_gated_norm(module: Any, group_sizes: list[int]) -> bool:
    """Give a norm its form; return False if it is of another kind.

    Args:
        module: the norm; the identity is one that does nothing but multiply with its gate.
        group_sizes: how many elements may be normalised together.
    """
    if type(module) is nn.Identity:
        become(module, GatedNormForm, portable_options={})
        return True
    weight = module.weight
    x, gate = sample_rows(2 * weight.shape[0], weight.dtype, weight.device).chunk(2, dim=-1)
    expected = module(x, gate)
    for size, is_first, activation in product(group_sizes, (False, True), ("silu", "sigmoid")):
        options = {
            "epsilon": module.variance_epsilon,
            "group_size": size,
            "norm_before_gate": is_first,
            "activation": activation,
        }
        found = portable_gated_rms_norm(x, gate, weight, **options)
        if largest_difference(expected, found) < TOLERANCE:
            become(module, GatedNormForm, portable_options=options)
            return True
    return False
