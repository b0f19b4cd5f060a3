"""The packed weights of layers, which follow their parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from vllm.fork_kernels.portable.product import PackedWeight

from ..experts import pack_experts
from ..linear import pack_matrices
from .following import Following

__all__ = ["ExpertWeights", "LayerWeights"]


class LayerWeights(Following[list[PackedWeight]]):
    """The packed weights of layers that share their input, equalised as one (`pack_together`).

    Args:
        layers: ``nn.Linear``, Transformers' ``Conv1D`` or a router.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        make = _pack_transposed if isinstance(layers[0], Conv1D) else _pack
        super().__init__(make, [(layer, "weight") for layer in layers])

    def of_layer(self, layer: nn.Module) -> PackedWeight:
        """Return the packed weight of one of the layers."""
        owners = [owner is layer for owner, _ in self.sources]
        return self.of()[owners.index(True)]


class ExpertWeights(Following[tuple[list[PackedWeight], list[PackedWeight]]]):
    """The packed weights of experts: of the gates and what they multiply, and of the last layers.

    Args:
        experts: has ``gate_up_proj`` and ``down_proj``.
    """

    def __init__(self, experts: nn.Module) -> None:
        super().__init__(pack_experts, [(experts, "gate_up_proj"), (experts, "down_proj")])


def _pack(*weights: torch.Tensor) -> list[PackedWeight]:
    return pack_matrices([weight.contiguous() for weight in weights])


def _pack_transposed(*weights: torch.Tensor) -> list[PackedWeight]:
    return _pack(*(weight.t() for weight in weights))
