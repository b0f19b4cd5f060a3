"""What mixtures of experts compute beside products."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from vllm.deterministic.mixtures import experts, routing

from .asked import is_asked

__all__ = ["route", "weighted_sums"]


def route(
    logits: torch.Tensor, count: int, *, is_renormalised: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and indices of the experts of each token (`routing.route`).

    Weights have gradients; which experts are chosen has none, as in Transformers.
    """
    if is_asked(logits):
        return _Routing.apply(logits, count, is_renormalised)
    return routing.route(logits, count, is_renormalised=is_renormalised)


def weighted_sums(outputs: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Add the experts of each token (`experts.weighted_sums`); with a gradient, outputs stay."""
    if is_asked(outputs, weights):
        return _WeightedSums.apply(outputs, weights, dtype)
    return experts.weighted_sums(outputs, weights, dtype)


class _Routing(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, count: int, is_renormalised: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights, indices = routing.route(logits, count, is_renormalised=is_renormalised)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(logits, weights, indices)
        ctx.is_renormalised = is_renormalised
        return weights, indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        logits, weights, indices = ctx.saved_tensors
        products = gradient * weights
        total = products.sum(-1, keepdim=True)
        if ctx.is_renormalised:  # the softmax of the chosen logits
            of_logits = torch.zeros_like(logits, dtype=torch.float32)
            of_logits.scatter_(1, indices, products - weights * total)
        else:
            of_logits = logits.float().softmax(-1) * -total
            of_logits.scatter_add_(1, indices, products)
        return of_logits.to(logits.dtype), None, None


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, outputs: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        ctx.save_for_backward(outputs, weights)
        return experts.weighted_sums(outputs.clone(), weights, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        outputs, weights = ctx.saved_tensors
        each = gradient.float().unsqueeze(1)
        return each * weights.unsqueeze(-1), (each * outputs).sum(-1), None
