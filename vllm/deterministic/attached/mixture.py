"""Mixtures of experts; see ``docs/numerics/operations.md``, "Mixtures of experts"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.models.mixtral.modeling_mixtral import MixtralExperts, MixtralTopKRouter
from transformers.models.olmoe.modeling_olmoe import OlmoeExperts, OlmoeTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts, Qwen3MoeTopKRouter

from vllm.deterministic.mixtures.experts import PackedExperts, in_parts
from vllm.fork_kernels.portable.functions import Function

from .activation import function_of
from .form import Form, become
from .gradients.functions import gated
from .gradients.mixture import route, weighted_sums
from .gradients.product import product
from .weights import ExpertWeights, LayerWeights

__all__ = ["ExpertsForm", "RouterForm", "adopt_mixture"]

_ROUTERS = (MixtralTopKRouter, Qwen3MoeTopKRouter, OlmoeTopKRouter)
_EXPERTS = (MixtralExperts, Qwen3MoeExperts, OlmoeExperts)


class RouterForm(Form):
    """Sends each token to the experts with the largest logits.

    Attributes:
        portable_weights: of the router alone.
        portable_is_renormalised: whether the weights of a token's experts add up to 1.
        weight: the parameter; None if the model is sealed.
    """

    portable_weights: LayerWeights
    portable_is_renormalised: bool
    weight: nn.Parameter | None
    top_k: int

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits, and weights (float32) and indices [num_tokens, top_k], of x [...,
        hidden_size].
        """
        (packed,) = self.portable_weights.of()
        logits = product(x.flatten(0, -2), self.weight, None, packed)
        renormalised = self.portable_is_renormalised
        return logits, *route(logits, self.top_k, is_renormalised=renormalised)


class ExpertsForm(Form):
    """The weighted sum of the experts of each token.

    Attributes:
        portable_weights: of the experts.
        portable_function: the activation.
        gate_up_proj: the parameter, as `down_proj`; None if the model is sealed.
    """

    portable_weights: ExpertWeights
    portable_function: Function
    gate_up_proj: nn.Parameter | None
    down_proj: nn.Parameter | None

    def forward(
        self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return [num_tokens, hidden_size] of x of the same shape.

        Args:
            x: bfloat16 or float16.
            indices: int64 [num_tokens, experts of a token].
            weights: float32, of the same shape.
        """
        experts = self._experts()

        def compute(x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
            return weighted_sums(experts.outputs(x, indices), weights, x.dtype)

        return in_parts(compute, x, weights, indices)

    def _experts(self) -> PackedExperts:
        packed = (*self.portable_weights.of(), self.portable_function)
        if self.gate_up_proj is None or self.down_proj is None:
            return PackedExperts(*packed)
        # Views of all experts at once: their gradients are put together in one copy.
        return _DifferentiableExperts(*packed, self.gate_up_proj.unbind(), self.down_proj.unbind())


@dataclass(frozen=True)
class _DifferentiableExperts(PackedExperts):
    gate_up_weights: tuple[torch.Tensor, ...]
    down_weights: tuple[torch.Tensor, ...]

    def _output(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        gate_up = product(rows, self.gate_up_weights[expert], None, self.gate_up[expert])
        opened = gated(gate_up, self.function)
        weight = self.down_weights[expert]
        return product(opened, weight, None, self.down[expert], torch.float32)


def adopt_mixture(module: Any) -> None:
    """Give a mixture's experts, or its router, their form."""
    if type(module) in _ROUTERS:
        become(
            *(module, RouterForm),
            portable_weights=LayerWeights([module]),
            # Mixtral knows no other way.
            portable_is_renormalised=bool(getattr(module, "norm_topk_prob", True)),
        )
    elif type(module) in _EXPERTS and (function := function_of(module.act_fn)) is not None:
        weights = ExpertWeights(module)
        become(module, ExpertsForm, portable_weights=weights, portable_function=function)
