"""Norms with a gate; see ``docs/numerics/states.md``."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch

from vllm.fork_kernels.portable.states import portable_gated_rms_norm


class GatedNorm(NamedTuple):
    """How a norm computes.

    Attributes:
        epsilon: is added to the mean square.
        group_size: elements that are normalised together.
        is_first: whether the norm comes before the gate.
        activation: of the gate, "silu" or "sigmoid".
    """

    epsilon: float
    group_size: int
    is_first: bool
    activation: str = "silu"


def use_gated_norm(layer: Any, numbers: GatedNorm) -> None:
    """Let ``Mixer2RMSNormGated`` or ``RMSNormGated`` of vLLM compute with portable bits."""
    layer._forward_method = partial(_forward, layer, numbers)


def has_portable_gate(layer: Any) -> bool:
    """Whether a layer is a norm that `use_gated_norm` has been given."""
    return getattr(getattr(layer, "_forward_method", None), "func", None) is _forward


def _forward(layer: Any, numbers: GatedNorm, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return portable_gated_rms_norm(
        x,
        gate,
        None if layer.weight is None else layer.weight.data,
        numbers.epsilon,
        group_size=numbers.group_size,
        norm_before_gate=numbers.is_first,
        activation=numbers.activation,
    )
