"""Where the answers of two sides part, and how many of their logits have the same bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vllm.parity.sides import Answer

NUM_CANDIDATES = 5


@dataclass(frozen=True)
class Candidate:
    """A token at the step at which two answers part.

    Attributes:
        token_id: of it.
        probability_a: that the first side gives it (Hugging Face, where that is one); None if it is
            not among the likeliest that are known.
        probability_b: likewise, the second side.
        chosen_by: "a", "b" or "".
    """

    token_id: int
    probability_a: float | None
    probability_b: float | None
    chosen_by: str


@dataclass(frozen=True)
class Comparison:
    """What two answers to one prompt have in common.

    Attributes:
        num_tokens: of Hugging Face's answer.
        first_difference: the step at which the answers part; None if they are equal.
        candidates: for that token.
        num_equal: values with the same bits, up to that step: logits, or the logprobs that both
            sides tell.
        num_compared: of how many.
        max_difference: the largest absolute difference of these values.
    """

    num_tokens: int
    first_difference: int | None
    candidates: list[Candidate]
    num_equal: int
    num_compared: int
    max_difference: float


def compare(hf: Answer, engine: Answer) -> Comparison:
    """Compare an engine's answer with Hugging Face's."""
    first = first_difference(hf.tokens, engine.tokens)
    num_steps = min(len(hf.tokens), len(engine.tokens))
    if first is not None:
        num_steps = min(num_steps, first + 1)
    ours, theirs = _values(hf, engine, num_steps)
    differences = np.abs(ours - theirs)
    return Comparison(
        num_tokens=len(hf.tokens),
        first_difference=first,
        candidates=[] if first is None else candidates(hf, engine, first),
        num_equal=int((ours.view(np.uint32) == theirs.view(np.uint32)).sum()),
        num_compared=ours.size,
        max_difference=float(np.nanmax(differences, initial=0.0)),
    )


def first_difference(a: list[int], b: list[int]) -> int | None:
    """Return the first place at which two lists differ; the shorter one ends at one, too."""
    for i, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def candidates(a: Answer, b: Answer, step: int, count: int = NUM_CANDIDATES) -> list[Candidate]:
    """Return the tokens that either side finds likeliest at a step, and those chosen."""
    sides = [one.logprobs[step] if step < len(one.logprobs) else {} for one in (a, b)]
    chosen = [one.tokens[step] if step < len(one.tokens) else None for one in (a, b)]
    ranked = [sorted(side, key=side.__getitem__, reverse=True)[:count] for side in sides]
    ids = dict.fromkeys([*(t for t in chosen if t is not None), *ranked[0], *ranked[1]])
    likeliest = sorted(ids, key=lambda t: -max(side.get(t, -math.inf) for side in sides))
    return [
        Candidate(
            token_id=token,
            probability_a=_probability(sides[0], token),
            probability_b=_probability(sides[1], token),
            chosen_by="a" if token == chosen[0] else "b" if token == chosen[1] else "",
        )
        for token in likeliest
        if token in chosen or len(ids) <= count or token in ranked[0]
    ]


def percent(probability: float | None) -> str:
    """Return a candidate's probability for reading."""
    return "-" if probability is None else f"{probability:.4%}"


def _probability(logprobs: dict[int, float], token: int) -> float | None:
    return math.exp(logprobs[token]) if token in logprobs else None


def _values(hf: Answer, engine: Answer, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 values of both sides that should have the same bits."""
    if hf.logits is not None and engine.logits is not None:
        width = min(hf.logits.shape[1], engine.logits.shape[1])
        found = [one.logits[:num_steps, :width] for one in (hf, engine) if one.logits is not None]
    else:
        steps = [
            (a[token], b[token])
            for a, b in zip(hf.logprobs[:num_steps], engine.logprobs[:num_steps], strict=True)
            for token in a.keys() & b.keys()
        ]
        found = list(np.array(steps, np.float32).reshape(-1, 2).T)
    return np.ascontiguousarray(found[0]), np.ascontiguousarray(found[1])
