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
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    scoring: Scoring,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend, causally; arguments and result are those of `attended`."""
    if is_asked(query, key, value, sinks):
        return _Attention.apply(query, key, value, sinks, layout, scoring)
    return attended(query, key, value, layout, scoring, sinks)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sinks: torch.Tensor | None,
        layout: Layout,
        scoring: Scoring,
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value, sinks)
        ctx.layout, ctx.scoring = layout, scoring
        return attended(query, key, value, layout, scoring, sinks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        *inputs, sinks = ctx.saved_tensors
        mask = ctx.layout.mask(ctx.scoring.window)
        gradient = gradient.transpose(1, 2)
        if ctx.layout.query_rows is not None:
            gradient = gradient * ctx.layout.is_query[:, None, :, None]
        if not ctx.scoring.soft_cap and sinks is None:
            plain = _gradients_of_plain(inputs, gradient, mask, ctx.scoring.scale)
            return *plain, None, None, None
        parts = [
            _part(inputs, sinks, gradient, mask, row, ctx.scoring) for row in range(len(gradient))
        ]
        *own, of_sinks = zip(*parts, strict=True)
        total = None if sinks is None else torch.stack(of_sinks).sum(0).to(sinks.dtype)
        return *(torch.cat(one) for one in own), total, None, None


def _gradients_of_plain(
    inputs: list[torch.Tensor], gradient: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, ...]:
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    with torch.enable_grad():
        query, key, value = inputs
        result = scaled_dot_product_attention(
            *(query, *_repeated(query, key, value), mask), is_causal=mask is None, scale=scale
        )
    return torch.autograd.grad(result, inputs, gradient)


def _part(
    inputs: list[torch.Tensor],
    sinks: torch.Tensor | None,
    gradient: torch.Tensor,
    mask: torch.Tensor | None,
    row: int,
    scoring: Scoring,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of a row of the batch, with what PyTorch's attention has not: a cap of
    scores, and sinks, whose gradient is the last one.
    """
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
        if scoring.soft_cap:
            scores = (scores / scoring.soft_cap).tanh() * scoring.soft_cap
        scores = scores.masked_fill(~seen, -torch.inf)
        if sinks is None:
            result = scores.softmax(-1) @ values.float()
            return *torch.autograd.grad(result, own, gradient[part].float()), None
        sink = sinks.detach().float().requires_grad_()
        column = sink.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
        result = weights @ values.float()
    return torch.autograd.grad(result, [*own, sink], gradient[part].float())


def _repeated(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values for each head of queries: PyTorch's grouped form is slow on CPUs."""
    times = query.shape[1] // key.shape[1]
    return key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
