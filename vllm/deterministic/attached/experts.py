"""Mixtures of experts; see ``docs/numerics/operations.md``, "Mixtures of experts"."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.mixtral.modeling_mixtral import MixtralExperts, MixtralTopKRouter
from transformers.models.olmoe.modeling_olmoe import OlmoeExperts, OlmoeTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts, Qwen3MoeTopKRouter

from vllm.deterministic.equalisation import exponents_of_columns, exponents_of_rows
from vllm.deterministic.mixtures.experts import PackedExperts, in_parts, weighted_sums
from vllm.deterministic.mixtures.routing import route
from vllm.fork_kernels.portable.functions import Function
from vllm.fork_kernels.portable.product import PackedWeight, pack_weight

from .activation import function_of
from .linear import PortableLinear, pack_together

_ROUTERS = (MixtralTopKRouter, Qwen3MoeTopKRouter, OlmoeTopKRouter)
_EXPERTS = (MixtralExperts, Qwen3MoeExperts, OlmoeExperts)


class PortableTopKRouter(nn.Module):
    """Sends each token to the experts with the largest logits.

    Args:
        weight: of `pack_weight`.
        count: experts for each token.
        is_renormalised: whether the weights of a token's experts add up to 1.
    """

    def __init__(self, weight: PackedWeight, count: int, is_renormalised: bool) -> None:
        super().__init__()
        self.logits = PortableLinear(weight, None)
        self._count = count
        self._is_renormalised = is_renormalised

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits, and weights (float32) and indices [num_tokens, count], of x [...,
        hidden_size].
        """
        logits = self.logits(x.flatten(0, -2))
        return logits, *route(logits, self._count, is_renormalised=self._is_renormalised)


class PortableExperts(nn.Module):
    """The weighted sum of the experts of each token.

    Args:
        experts: the packed weights.
    """

    def __init__(self, experts: PackedExperts) -> None:
        super().__init__()
        self._experts = experts

    def forward(
        self, x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return [num_tokens, hidden_size] of x of the same shape.

        Args:
            x: bfloat16 or float16.
            indices: int64 [num_tokens, experts of a token].
            weights: float32, of the same shape.
        """
        return in_parts(self._weighted_sums, x, weights, indices)

    def _weighted_sums(
        self, x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        return weighted_sums(self._experts.outputs(x, indices), weights, x.dtype)


def portable_experts(module: Any) -> nn.Module | None:
    """Return the portable form of a mixture's experts or of its router; None if it is neither."""
    if is_router(module):
        weight = pack_together([module])[0]
        return PortableTopKRouter(weight, module.top_k, renormalises(module))
    if (function := function_of_experts(module)) is None:
        return None
    packed = pack_experts(module.gate_up_proj.data, module.down_proj.data)
    return PortableExperts(PackedExperts(*packed, function))


def is_router(module: nn.Module) -> bool:
    """Return whether a module is a router of a mixture of experts that is known."""
    return type(module) in _ROUTERS


def renormalises(router: nn.Module) -> bool:
    """Return whether the weights of a token's experts add up to 1."""
    return bool(getattr(router, "norm_topk_prob", True))  # Mixtral knows no other way


def function_of_experts(module: Any) -> Function | None:
    """Return the activation of a mixture's experts; None if `module` is none that are known."""
    return function_of(module.act_fn) if type(module) in _EXPERTS else None


def pack_experts(
    gate_up: torch.Tensor, down: torch.Tensor
) -> tuple[list[PackedWeight], list[PackedWeight]]:
    """Pack the weights of experts.

    Args:
        gate_up: [experts, 2 * intermediate_size, hidden_size], the gates first.
        down: [experts, hidden_size, intermediate_size].
    """
    return (
        _pack_each(gate_up, exponents_of_rows(gate_up, num_ranks=1)),
        _pack_each(down, exponents_of_columns(down, num_ranks=1, rank=0)),
    )


def _pack_each(weights: torch.Tensor, exponents: torch.Tensor) -> list[PackedWeight]:
    return [pack_weight(*pair) for pair in zip(weights, exponents, strict=True)]
