"""RMSNorm and LayerNorm of Transformers with portable bits.

Families write RMSNorm in their own class each, and some store weight - 1. Which it is, is found by
asking the module, so that a new family needs no entry, and a norm of another kind is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vllm.deterministic.fusion import Source
from vllm.fork_kernels.portable.norm import portable_layer_norm, portable_rms_norm

from .sample import TOLERANCE, difference, sample_rows


class PortableRMSNorm(nn.Module):
    """Args: weight [size] or None, epsilon, and what is added to the weight (1 for Gemma)."""

    def __init__(self, weight: nn.Parameter | None, epsilon: float, weight_offset: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = epsilon
        self.weight_offset = weight_offset
        self._source = Source()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of the rows of x [..., size], in its dtype."""
        normed = portable_rms_norm(
            x.contiguous(),
            self.weight,
            self.variance_epsilon,
            weight_offset=self.weight_offset,
            consumer=self._source.consumer,
        )
        return self._source.made(normed)


class PortableLayerNorm(nn.Module):
    """Args: weight [size] or None, bias [size] or None, and epsilon."""

    def __init__(
        self, weight: nn.Parameter | None, bias: nn.Parameter | None, epsilon: float
    ) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.eps = epsilon
        self._source = Source()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of the rows of x [..., size], in its dtype."""
        normed = portable_layer_norm(
            x.contiguous(), self.weight, self.bias, self.eps, consumer=self._source.consumer
        )
        return self._source.made(normed)


def portable_norm(module: Any) -> nn.Module | None:
    """Return the portable form of a norm over rows; None if `module` is none that is specified."""
    if type(module) is nn.LayerNorm:
        is_of_rows = len(module.normalized_shape) == 1
        return PortableLayerNorm(module.weight, module.bias, module.eps) if is_of_rows else None
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("Norm") or epsilon is None:
        return None
    if not isinstance(weight, nn.Parameter) or weight.dim() != 1 or len(module._parameters) != 1:
        return None
    candidates = [
        PortableRMSNorm(weight, epsilon, 0.0),
        PortableRMSNorm(weight, epsilon, 1.0),
        PortableLayerNorm(weight, None, epsilon),
    ]
    rows = sample_rows(weight.shape[0], weight.dtype, weight.device)
    expected = module(rows)
    errors = [difference(expected, candidate(rows)) for candidate in candidates]
    return candidates[errors.index(min(errors))] if min(errors) < TOLERANCE else None
