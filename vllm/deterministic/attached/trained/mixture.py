"""Mixtures of experts that keep their parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vllm.deterministic.mixtures.experts import PackedExperts, in_parts
from vllm.fork_kernels.portable.functions import Function

from ..gradients.functions import gated
from ..gradients.mixture import route, weighted_sums
from ..gradients.product import product
from .classes import Form
from .weights import ExpertWeights, LayerWeights

__all__ = ["TrainedExperts", "TrainedRouter"]


class TrainedRouter(Form):
    """Sends each token to the experts with the largest logits.

    Attributes:
        portable_weights: of the router alone.
        portable_is_renormalised: whether the weights of a token's experts add up to 1.
    """

    portable_weights: LayerWeights
    portable_is_renormalised: bool
    weight: nn.Parameter
    top_k: int

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits, and weights (float32) and indices [num_tokens, top_k], of x [...,
        hidden_size].
        """
        (packed,) = self.portable_weights.of()
        logits = product(x.flatten(0, -2), self.weight, None, packed)
        renormalised = self.portable_is_renormalised
        return logits, *route(logits, self.top_k, is_renormalised=renormalised)


class TrainedExperts(Form):
    """The weighted sum of the experts of each token.

    Attributes:
        portable_weights: of the experts.
        portable_function: the activation.
    """

    portable_weights: ExpertWeights
    portable_function: Function
    gate_up_proj: nn.Parameter
    down_proj: nn.Parameter

    def forward(
        self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return [num_tokens, hidden_size] of x of the same shape.

        Args:
            x: bfloat16 or float16.
            indices: int64 [num_tokens, experts of a token].
            weights: float32, of the same shape.
        """
        experts = _DifferentiableExperts(
            *self.portable_weights.of(),
            self.portable_function,
            # Views of all experts at once: their gradients are put together in one copy.
            self.gate_up_proj.unbind(),
            self.down_proj.unbind(),
        )
        return in_parts(experts.weighted_sums, x, weights, indices)


@dataclass(frozen=True)
class _DifferentiableExperts(PackedExperts):
    gate_up_weights: tuple[torch.Tensor, ...]
    down_weights: tuple[torch.Tensor, ...]

    def weighted_sums(
        self, x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        return weighted_sums(self.outputs(x, indices), weights, x.dtype)

    def _output(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        gate_up = product(rows, self.gate_up_weights[expert], None, self.gate_up[expert])
        opened = gated(gate_up, self.function)
        weight = self.down_weights[expert]
        return product(opened, weight, None, self.down[expert], torch.float32)
