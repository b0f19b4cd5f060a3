"""Attention; backward computes the scores anew, with PyTorch's attention."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from ..attention import Scoring, attended
from ..layout import Layout
from .asked import is_asked

__all__ = ["attention"]


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scoring: Scoring
) -> torch.Tensor:
    """Attend, causally; arguments and result are those of `attended`."""
    if is_asked(query, key, value):
        return _Attention.apply(query, key, value, layout, scoring)
    return attended(query, key, value, layout, scoring)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layout: Layout,
        scoring: Scoring,
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.layout, ctx.scoring = layout, scoring
        return attended(query, key, value, layout, scoring)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        mask = ctx.layout.mask(ctx.scoring.window)
        gradient = gradient.transpose(1, 2)
        if ctx.layout.query_rows is not None:
            gradient = gradient * ctx.layout.is_query[:, None, :, None]
        if not ctx.scoring.soft_cap:
            return *_gradients_of_plain(inputs, gradient, mask, ctx.scoring.scale), None, None
        parts = [_part(inputs, gradient, mask, row, ctx.scoring) for row in range(len(gradient))]
        return *(torch.cat(one) for one in zip(*parts, strict=True)), None, None


def _gradients_of_plain(
    inputs: list[torch.Tensor], gradient: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, ...]:
    with torch.enable_grad():
        query, key, value = inputs
        result = scaled_dot_product_attention(
            *(query, *_repeated(query, key, value), mask), is_causal=mask is None, scale=scale
        )
    return torch.autograd.grad(result, inputs, gradient)


def _part(
    inputs: list[torch.Tensor],
    gradient: torch.Tensor,
    mask: torch.Tensor | None,
    row: int,
    scoring: Scoring,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of a row of the batch, with capped scores, which PyTorch has not."""
    part = slice(row, row + 1)
    query, key, value = own = [tensor[part].detach().requires_grad_() for tensor in inputs]
    if mask is None:
        shape = (query.shape[2], key.shape[2])
        seen = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    else:
        seen = mask[part]
    with torch.enable_grad():
        keys, values = _repeated(query, key, value)
        scores = query.float() @ keys.float().mT * scoring.scale
        capped = (scores / scoring.soft_cap).tanh() * scoring.soft_cap
        weights = capped.masked_fill(~seen, -torch.inf).softmax(-1)
        result = weights @ values.float()
    return torch.autograd.grad(result, own, gradient[part].float())


def _repeated(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values for each head of queries: PyTorch's grouped form is slow on CPUs."""
    times = query.shape[1] // key.shape[1]
    return key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
