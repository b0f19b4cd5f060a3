"""Where two recordings part, how far apart distributions were, and what they were made with."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm.parity.differences import Candidate, candidates, first_difference
from vllm.parity.recording import Recording


@dataclass(frozen=True)
class Parting:
    """Two answers to a prompt that part.

    Attributes:
        prompt: its number.
        text: the prompt.
        step: the first token that differs; both have the same before it.
        candidates: for that token.
        distance: total variation between the distributions of that token: half the sum of what
            probabilities differ by, 0 to 1. Tokens that only one side has kept count as one.
        distance_before: the largest of the steps before, which have the same tokens before them; 0
            if there is none.
    """

    prompt: int
    text: str
    step: int
    candidates: list[Candidate]
    distance: float
    distance_before: float


@dataclass(frozen=True)
class RecordingsCompared:
    """What two recordings have in common.

    Attributes:
        facts: those of the machines and settings that differ: name to both values.
        num_answers: of each recording.
        partings: of the answers that differ.
        token_texts: of their candidates.
        num_equal_steps: steps whose logits have the same bits; None where one has no logits.
        num_steps: of how many: those until answers part.
        max_logprob_difference: of the tokens that both chose.
        max_distance: the largest total variation of all these steps.
    """

    facts: dict[str, tuple[Any, Any]]
    num_answers: int
    partings: list[Parting]
    token_texts: dict[int, str]
    num_equal_steps: int | None
    num_steps: int
    max_logprob_difference: float
    max_distance: float

    @property
    def num_equal(self) -> int:
        """Answers that are equal to the last token."""
        return self.num_answers - len(self.partings)

    def as_json(self) -> str:
        """Return all of it as a JSON object."""
        return json.dumps({"num_equal": self.num_equal, **asdict(self)}, indent=1)


def compare_recordings(a: str | Path, b: str | Path) -> RecordingsCompared:
    """Compare two files of `record`.

    Raises:
        ValueError: a file is no recording, or they have other prompts.
    """
    one, other = Recording.read(a), Recording.read(b)
    if one.prompts != other.prompts:
        raise ValueError(f"{a} and {b} answer different prompts: record both with the same ones.")
    pairs = list(zip(one.answers, other.answers, strict=True))
    firsts = [first_difference(x.tokens, y.tokens) for x, y in pairs]
    lengths = [len(x.tokens) if k is None else k for (x, _), k in zip(pairs, firsts, strict=True)]
    shared = [
        (x.logprobs[i], y.logprobs[i], x.tokens[i])
        for (x, y), length in zip(pairs, lengths, strict=True)
        for i in range(length)
    ]
    texts = one.setting["prompts"]
    partings = [
        _parting(number, texts[number], x, y, step)
        for number, ((x, y), step) in enumerate(zip(pairs, firsts, strict=True))
        if step is not None
    ]
    tokens = {found.token_id for parting in partings for found in parting.candidates}
    known = one.token_texts | other.token_texts
    return RecordingsCompared(
        facts=_different_facts(one, other),
        num_answers=len(pairs),
        partings=partings,
        token_texts={token: known[token] for token in sorted(tokens)},
        num_equal_steps=_equal_steps(one, other, lengths),
        num_steps=len(shared),
        max_logprob_difference=max((abs(p[k] - q[k]) for p, q, k in shared), default=0.0),
        max_distance=max((total_variation(p, q) for p, q, _ in shared), default=0.0),
    )


def total_variation(p: dict[int, float], q: dict[int, float]) -> float:
    """Return the total variation of two distributions of which the likeliest tokens are known.

    Args:
        p: logprobs of tokens.
        q: likewise.

    Returns:
        0 to 1; that of all tokens is at least this, since those that are not in both count as one.
    """
    both = p.keys() & q.keys()
    mine, theirs = ({token: math.exp(side[token]) for token in both} for side in (p, q))
    rest = abs(sum(mine.values()) - sum(theirs.values()))
    return (sum(abs(mine[token] - theirs[token]) for token in both) + rest) / 2


def _parting(number: int, text: str, x: Any, y: Any, step: int) -> Parting:
    steps = list(zip(x.logprobs, y.logprobs, strict=False))
    distances = [total_variation(p, q) for p, q in steps[: step + 1]]
    count = max((len(side) for side in x.logprobs), default=1)
    return Parting(
        prompt=number,
        text=text,
        step=step,
        candidates=candidates(x, y, step, count),
        distance=distances[step] if step < len(distances) else 1.0,
        distance_before=max(distances[:step], default=0.0),
    )


def _equal_steps(one: Recording, other: Recording, lengths: list[int]) -> int | None:
    """Return how many steps have logits with the same bits, before answers part."""
    equal = 0
    for mine, theirs, length in zip(one.digests, other.digests, lengths, strict=True):
        if mine is None or theirs is None:
            return None
        equal += sum(a == b for a, b in zip(mine[:length], theirs[:length], strict=True))
    return equal


def _different_facts(one: Recording, other: Recording) -> dict[str, tuple[Any, Any]]:
    """Return what the two were recorded with, as far as it differs; None is what one has not."""
    flat = [
        {"side": found.side}
        | {f"machine: {name}": value for name, value in found.machine.items()}
        | {f"setting: {name}": value for name, value in found.setting.items()}
        for found in (one, other)
    ]
    names = flat[0] | flat[1]
    pairs = {name: (flat[0].get(name), flat[1].get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


# --- for reading ---------------------------------------------------------------------------------
def summary(compared: RecordingsCompared) -> list[str]:
    """Return the counts in a line each."""
    logits = "logits: one of the two has none"
    if compared.num_equal_steps is not None:
        logits = (
            f"logits with the same bits: {compared.num_equal_steps} of {compared.num_steps} tokens"
        )
    return [
        f"answers equal: {compared.num_equal} of {compared.num_answers}",
        logits,
        f"largest difference of a logprob before answers part: "
        f"{compared.max_logprob_difference:.3g}",
        f"largest distance of two distributions before that: {compared.max_distance:.2%}",
    ]


def distances(one: Parting) -> str:
    """Return how far the distributions were apart, there and before."""
    before = f", at most {one.distance_before:.2%} before it" if one.step else ""
    return f"distributions {one.distance:.2%} apart{before}"


def fact(value: Any) -> str:
    """Return what a machine or a setting has; "-" if it has it not."""
    return "-" if value is None else str(value)
