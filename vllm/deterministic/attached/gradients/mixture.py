"""What mixtures of experts compute beside products."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from vllm.deterministic.mixtures import experts, routing

from .operation import Operation, asks_for_gradient

__all__ = ["route", "weighted_sums"]


def route(
    logits: torch.Tensor, count: int, *, is_renormalised: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and indices of the experts of each token (`routing.route`).

    Weights have gradients; which experts are chosen has none, as in Transformers.
    """
    return _Routing.of(logits, count, is_renormalised)


def weighted_sums(outputs: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Add the experts of each token (`experts.weighted_sums`)."""
    if not asks_for_gradient(outputs, weights):
        return experts.weighted_sums(outputs, weights, dtype)  # in the memory of outputs
    return _WeightedSums.apply(outputs, weights, dtype)


class _Routing(Operation):
    @staticmethod
    def forward(
        logits: torch.Tensor, count: int, is_renormalised: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return routing.route(logits, count, is_renormalised=is_renormalised)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        logits, _, ctx.is_renormalised = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(logits, *output)

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


class _WeightedSums(Operation):
    @staticmethod
    def forward(outputs: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return experts.weighted_sums(outputs.clone(), weights, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        outputs, weights = ctx.saved_tensors
        each = gradient.float().unsqueeze(1)
        return each * weights.unsqueeze(-1), (each * outputs).sum(-1), None
