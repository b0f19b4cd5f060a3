"""The packed weights of layers, which follow their parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from vllm.deterministic.equalisation import exponents_of_columns, exponents_of_rows
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    channel_statistics,
    equalising_exponents,
    pack_weight,
)

from .following import Following

__all__ = ["ExpertWeights", "LayerWeights", "are_transposed", "pack_matrices"]


class LayerWeights(Following[list[PackedWeight]]):
    """The packed weights of layers that share their input, equalised as one (`pack_matrices`).

    Args:
        layers: ``nn.Linear``, Transformers' ``Conv1D`` or a router.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        make = _pack_transposed if isinstance(layers[0], Conv1D) else _pack
        super().__init__(make, [(layer, "weight") for layer in layers])


class ExpertWeights(Following[tuple[list[PackedWeight], list[PackedWeight]]]):
    """The packed weights of experts: of the gates and what they multiply, and of the last layers.

    Args:
        experts: has ``gate_up_proj`` [experts, 2 * intermediate_size, hidden_size], the gates
            first or in turns, and ``down_proj`` [experts, hidden_size, intermediate_size]; or
            both with matrices the other way round.
    """

    def __init__(self, experts: nn.Module) -> None:
        super().__init__(_pack_experts, [(experts, "gate_up_proj"), (experts, "down_proj")])


def are_transposed(gate_up: torch.Tensor, down: torch.Tensor) -> bool:
    """Return whether experts' matrices have their inputs in rows, as gpt-oss's."""
    return gate_up.shape[1:] != (2 * down.shape[2], down.shape[1])


def pack_matrices(weights: Sequence[torch.Tensor]) -> list[PackedWeight]:
    """Pack weights, [out_features, in_features] and contiguous, that share their input."""
    statistics = channel_statistics(weights[0])
    for weight in weights[1:]:
        statistics = statistics + channel_statistics(weight)
    exponents = equalising_exponents(statistics)
    return [pack_weight(weight, exponents) for weight in weights]


def _pack(*weights: torch.Tensor) -> list[PackedWeight]:
    return pack_matrices([weight.contiguous() for weight in weights])


def _pack_transposed(*weights: torch.Tensor) -> list[PackedWeight]:
    return _pack(*(weight.t() for weight in weights))


def _pack_experts(
    gate_up: torch.Tensor, down: torch.Tensor
) -> tuple[list[PackedWeight], list[PackedWeight]]:
    if are_transposed(gate_up, down):
        gate_up, down = gate_up.mT.contiguous(), down.mT.contiguous()
    return (
        _pack_each(gate_up, exponents_of_rows(gate_up, num_ranks=1)),
        _pack_each(down, exponents_of_columns(down, num_ranks=1, rank=0)),
    )


def _pack_each(weights: torch.Tensor, exponents: torch.Tensor) -> list[PackedWeight]:
    return [pack_weight(*pair) for pair in zip(weights, exponents, strict=True)]
