"""What a sampler makes of logits: the filter, and the log-probabilities of given tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from vllm.fork_kernels.portable.logits import portable_log_softmax
from vllm.fork_kernels.portable.sampling import portable_filter

__all__ = ["filtered", "log_probs_of"]

_ROWS = 256
"""At a time, so that tables of all tokens' probabilities need little memory."""


def filtered(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Divide logits by a temperature, and remove what top_k and top_p remove (`portable_filter`).

    Args:
        logits: float32 [n, vocab_size].
        temperature: above 0.
        top_k: how many tokens stay; all if it is below 1.
        top_p: the share of the probability that stays, 0 to 1.

    Returns:
        float32 [n, vocab_size], -infinity where a token is removed; such a logit has no gradient.
    """
    return _Filter.apply(logits, temperature, top_k, top_p)


def log_probs_of(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of a token in each row (`portable_log_softmax`).

    Args:
        logits: float32 [n, vocab_size], contiguous.
        token_ids: int64 [n].

    Returns:
        float32 [n].
    """
    return _LogProbs.apply(logits, token_ids)


class _Filter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, temperature: float, top_k: int, top_p: float
    ) -> torch.Tensor:
        ctx.temperature = temperature
        rows = logits.new_ones(len(logits))
        result = portable_filter(
            logits, rows * temperature, (rows * top_k).int(), rows * top_p, rows * 0
        )
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (result,) = ctx.saved_tensors
        of_logits = (gradient / ctx.temperature).masked_fill_(result == -torch.inf, 0.0)
        return of_logits, None, None, None


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits, token_ids)
        parts = zip(logits.split(_ROWS), token_ids.unsqueeze(1).split(_ROWS), strict=True)
        return torch.cat([portable_log_softmax(rows).gather(1, ids) for rows, ids in parts])[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        logits, token_ids = ctx.saved_tensors
        gradient = gradient.unsqueeze(1)
        of_logits = torch.empty_like(logits)
        for start in range(0, len(logits), _ROWS):
            part = slice(start, start + _ROWS)
            torch.softmax(logits[part], -1, out=of_logits[part])
        of_logits.mul_(-gradient)
        return of_logits.scatter_add_(1, token_ids.unsqueeze(1), gradient), None
