"""Linear layers as portable products; see ``docs/numerics/products.md``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from vllm.deterministic import fusion
from vllm.fork_kernels.portable.functions import Function, portable_map
from vllm.fork_kernels.portable.product import (
    PackedWeight,
    channel_statistics,
    equalising_exponents,
    pack_weight,
    portable_product,
)

from .training import without_gradient


class PortableLinear(nn.Module):
    """``x W^T + b`` with a packed weight.

    Args:
        weight: of `pack_weight`.
        bias: [out_features] or None.
        dtype: of the result; that of ``x`` if None.
    """

    def __init__(
        self, weight: PackedWeight, bias: nn.Parameter | None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.packed = weight
        self.bias = bias
        self._dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] of x [..., in_features]."""
        fusion.takes(self.packed, x)
        return portable_product(x, self.packed, self.bias, self._dtype)


class PortableHead(PortableLinear):
    """The output embedding: float32 logits, which may be capped.

    Args:
        weight: of `pack_weight`.
        bias: [vocab_size] or None.
        cap: logits become cap * tanh(logits / cap), as in Gemma 2; None leaves them.
    """

    def __init__(self, weight: PackedWeight, bias: nn.Parameter | None, cap: float | None) -> None:
        super().__init__(weight, bias, torch.float32)
        self._cap = cap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, float32 [..., vocab_size], of x [..., hidden_size]."""
        logits = super().forward(x)
        if self._cap is None:
            return without_gradient(logits)
        # A tensor: PyTorch divides by a number on CPU, and on CUDA multiplies with what is nearly
        # its reciprocal.
        caps = logits.new_full((1,), self._cap)
        return without_gradient(portable_map(logits / caps, Function.TANH) * caps)


def pack_together(layers: Sequence[Any]) -> list[PackedWeight]:
    """Pack the weights of layers that share their input (see `matrix`), equalised as one."""
    return pack_matrices([matrix(layer) for layer in layers])


def pack_matrices(weights: Sequence[torch.Tensor]) -> list[PackedWeight]:
    """Pack weights, [out_features, in_features] and contiguous, that share their input."""
    statistics = channel_statistics(weights[0])
    for weight in weights[1:]:
        statistics = statistics + channel_statistics(weight)
    exponents = equalising_exponents(statistics)
    return [pack_weight(weight, exponents) for weight in weights]


def matrix(layer: Any) -> torch.Tensor:
    """Return the weight, [out_features, in_features], contiguous; ``Conv1D`` keeps it transposed.

    Args:
        layer: ``nn.Linear`` or Transformers' ``Conv1D``.
    """
    weight = layer.weight.data
    return (weight.t() if isinstance(layer, Conv1D) else weight).contiguous()
