"""Which experts a token goes to; see ``docs/numerics/operations.md``, "Mixtures of experts"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vllm.fork_kernels.portable.functions import Function, portable_map
from vllm.fork_kernels.portable.logits import portable_log_softmax, portable_top_k

__all__ = ["Routing", "Scoring", "route"]

Scoring = Literal["softmax", "sigmoid"]

_LEAST_SCORE = 2.0**-32
"""What is less counts 0, so that no weight is subnormal, where settings of processors differ."""

_LEAST_SUM = 2.0**-66
"""Of the scores that are divided by their sum: less than any score but 0."""


@dataclass(frozen=True)
class Routing:
    """How the experts of a token are chosen and weighed.

    Attributes:
        count: experts for each token.
        is_renormalised: whether the weights of a token's experts add up to `factor`.
        scoring: what makes scores of logits.
        num_groups: into which the experts are divided, in their order.
        num_chosen_groups: those that a token's experts are from.
        factor: of all weights.
    """

    count: int
    is_renormalised: bool = True
    scoring: Scoring = "softmax"
    num_groups: int = 1
    num_chosen_groups: int = 1
    factor: float = 1.0


def route(
    logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and indices of the experts of each token, in the order of their ranks.

    Args:
        logits: float32, bfloat16 or float16 [num_tokens, num_experts].
        routing: how.
        correction: float32 [num_experts], added to the scores that decide which experts are
            chosen; None for none, where their logits decide.

    Returns:
        float32 and int64 [num_tokens, count].
    """
    logits = logits.contiguous()
    if correction is None:
        chosen, indices = portable_top_k(_of_groups(logits, routing, best=1), routing.count)
        return _scaled(_weights_of_logits(logits, chosen, indices, routing), routing), indices
    scores = _scores(logits, routing)
    ranking = scores + correction
    _, indices = portable_top_k(_of_groups(ranking, routing, best=2), routing.count)
    return _scaled(_weights_of_scores(scores.gather(1, indices), routing), routing), indices


def _of_groups(ranking: torch.Tensor, routing: Routing, best: int) -> torch.Tensor:
    """Return the ranking with the experts of all but the best groups last.

    Args:
        ranking: [num_tokens, num_experts].
        routing: has the groups.
        best: the number of experts whose sum is a group's value.
    """
    if routing.num_chosen_groups == routing.num_groups:
        return ranking
    groups = ranking.unflatten(1, (routing.num_groups, -1))
    values, _ = portable_top_k(groups.flatten(0, 1).contiguous(), best)
    value = values[:, 0] if best == 1 else values[:, 0] + values[:, 1]
    value = value.view(-1, routing.num_groups)
    _, chosen = portable_top_k(value, routing.num_chosen_groups)
    is_left_out = torch.ones_like(value, dtype=torch.bool)
    is_left_out.scatter_(1, chosen, False)
    return groups.masked_fill(is_left_out.unsqueeze(-1), -torch.inf).flatten(1)


def _weights_of_logits(
    logits: torch.Tensor, chosen: torch.Tensor, indices: torch.Tensor, routing: Routing
) -> torch.Tensor:
    if routing.scoring == "softmax" and routing.is_renormalised:  # the softmax of the chosen
        exponentials = _without_least(portable_map(chosen - chosen[:, :1], Function.EXP))
        return exponentials / _sum(exponentials)
    return _weights_of_scores(_scores(logits, routing).gather(1, indices), routing)


def _scores(logits: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Return the scores of all experts, float32 like `logits`."""
    if routing.scoring == "sigmoid":
        return _without_least(portable_map(logits.float(), Function.SIGMOID))
    return _without_least(portable_map(portable_log_softmax(logits), Function.EXP))


def _weights_of_scores(scores: torch.Tensor, routing: Routing) -> torch.Tensor:
    if not routing.is_renormalised:
        return scores
    total = _sum(scores)
    return scores / torch.maximum(total, torch.full_like(total, _LEAST_SUM))


def _sum(scores: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row, in order, [num_tokens, 1]."""
    total = scores[:, :1]
    for rank in range(1, scores.shape[1]):
        total = total + scores[:, rank : rank + 1]
    return total


def _scaled(weights: torch.Tensor, routing: Routing) -> torch.Tensor:
    if routing.factor == 1.0:
        return weights
    return weights * weights.new_full((1,), routing.factor)


def _without_least(scores: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(scores < _LEAST_SCORE, 0.0)
