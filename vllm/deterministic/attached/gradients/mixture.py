"""What mixtures of experts compute beside products."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from vllm.deterministic.mixtures import experts, routing
from vllm.deterministic.mixtures.routing import Routing

from .asked import is_asked

__all__ = ["route", "weighted_sums"]


def route(
    logits: torch.Tensor, how: Routing, correction: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and indices of the experts of each token (`routing.route`).

    Weights have gradients; which experts are chosen has none, as in Transformers.
    """
    if is_asked(logits):
        return _Routing.apply(logits, how, correction)
    return routing.route(logits, how, correction)


def weighted_sums(outputs: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Add the experts of each token (`experts.weighted_sums`); with a gradient, outputs stay."""
    if is_asked(outputs, weights):
        return _WeightedSums.apply(outputs, weights, dtype)
    return experts.weighted_sums(outputs, weights, dtype)


class _Routing(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, how: Routing, correction: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights, indices = routing.route(logits, how, correction)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(logits, indices)
        ctx.how = how
        return weights, indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        logits, indices = ctx.saved_tensors
        how: Routing = ctx.how
        logits = logits.detach().requires_grad_()
        with torch.enable_grad():
            numbers = logits.float()
            scores = numbers.sigmoid() if how.scoring == "sigmoid" else numbers.softmax(-1)
            weights = scores.gather(1, indices)
            if how.is_renormalised:
                weights = weights / weights.sum(-1, keepdim=True)
            weights = weights * how.factor
        return *torch.autograd.grad(weights, logits, gradient), None, None


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
