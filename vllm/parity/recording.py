"""Answers of one machine on file, to compare with those of another one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vllm.parity.differences import first_difference
from vllm.parity.setting import MODES, Setting, machine
from vllm.parity.sides import Answer, HuggingFace, engine, engine_answers

FORMAT = 1
SIDES = ("hf", *MODES)


def record(setting: Setting, side: str, path: str | Path) -> None:
    """Write what a side answers: tokens, logprobs, and digests of each step's logits.

    Args:
        setting: what is asked.
        side: "hf", or a mode of the engine.
        path: of a JSON file.

    Raises:
        ValueError: there is no such side.
    """
    if side not in SIDES:
        raise ValueError(f"side={side!r} is none of {', '.join(SIDES)}.")
    hf = HuggingFace(setting)
    prompts = hf.prompt_ids()
    if side == "hf":
        answers = hf.answers()
    else:
        with engine(setting, side, max(map(len, prompts))) as llm:
            answers = engine_answers(llm, setting, prompts)
    found = {
        "format": FORMAT,
        "side": side,
        "setting": setting.as_json(),
        "machine": machine(),
        "prompts": prompts,
        "answers": [_as_json(answer) for answer in answers],
    }
    Path(path).write_text(json.dumps(found, indent=1) + "\n")


def _as_json(answer: Answer) -> dict[str, Any]:
    digests = None
    if answer.logits is not None:
        digests = logits_digests(answer.logits)
    chosen = [step[token] for step, token in zip(answer.logprobs, answer.tokens, strict=True)]
    return {"tokens": answer.tokens, "logprobs": chosen, "logits_digests": digests}


def logits_digests(logits: np.ndarray) -> list[str]:
    """Return a digest of the bits of each row of float32 [num_tokens, vocab_size]."""
    return [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in logits]


@dataclass(frozen=True)
class RecordingsCompared:
    """What two recordings have in common.

    Attributes:
        facts: those of the machines and settings that differ: name to both values.
        num_answers: of each recording.
        first_differences: for each answer the step at which they part, None if they do not.
        num_equal_steps: steps whose logits have the same bits; None where one has no logits.
        num_steps: of how many.
        max_logprob_difference: of the tokens that both chose.
    """

    facts: dict[str, tuple[Any, Any]]
    num_answers: int
    first_differences: list[int | None]
    num_equal_steps: int | None
    num_steps: int
    max_logprob_difference: float

    @property
    def num_equal(self) -> int:
        """Answers that are equal to the last token."""
        return self.first_differences.count(None)


def compare_recordings(a: str | Path, b: str | Path) -> RecordingsCompared:
    """Compare two files of `record`.

    Raises:
        ValueError: a file is no recording, or they have other prompts.
    """
    one, other = _read(a), _read(b)
    if one["prompts"] != other["prompts"]:
        raise ValueError(f"{a} and {b} answer different prompts: record both with the same ones.")
    pairs = list(zip(one["answers"], other["answers"], strict=True))
    firsts = [first_difference(x["tokens"], y["tokens"]) for x, y in pairs]
    steps = [
        (_step(x, i), _step(y, i))
        for (x, y), first in zip(pairs, firsts, strict=True)
        for i in range(len(x["tokens"]) if first is None else first)
    ]
    has_logits = all(digest is not None for pair in steps for _, digest in pair)
    return RecordingsCompared(
        facts=_different_facts(one, other),
        num_answers=len(pairs),
        first_differences=firsts,
        num_equal_steps=sum(x[1] == y[1] for x, y in steps) if has_logits else None,
        num_steps=len(steps),
        max_logprob_difference=max((abs(x[0] - y[0]) for x, y in steps), default=0.0),
    )


def _step(answer: dict[str, Any], i: int) -> tuple[float, str | None]:
    """Return the logprob of the chosen token, and the digest of the logits, if there is one."""
    digests = answer["logits_digests"]
    return answer["logprobs"][i], None if digests is None else digests[i]


def _different_facts(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what the two were recorded with, as far as it differs."""
    flat = [
        {"side": found["side"]}
        | {f"{part}: {name}": value for part in ("machine", "setting") for name, value in
           found[part].items()}
        for found in (one, other)
    ]  # fmt: skip
    names = flat[0] | flat[1]
    pairs = {name: (flat[0].get(name), flat[1].get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _read(path: str | Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text())
        if found["format"] == FORMAT:
            return found
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{path} is no recording of this version: make one with `vllm parity record`.")
