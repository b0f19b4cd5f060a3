"""Answers of one machine on file, to compare with those of another one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vllm.parity.machine import machine
from vllm.parity.setting import MODES, Setting
from vllm.parity.sides import NUM_LOGPROBS, Answer, HuggingFace, engine, engine_answers

FORMAT = 2
SIDES = ("hf", *MODES)

NUM_CANDIDATES = 10
"""Tokens of each step that are kept, the likeliest, unless another number is asked for."""


@dataclass(frozen=True)
class Recording:
    """What a side has answered.

    Attributes:
        side: of `SIDES`.
        setting: what was asked, see `Setting`.
        machine: see `machine`.
        prompts: their token ids.
        answers: with the likeliest tokens of each step, and without logits.
        digests: of each step's logits, for each answer; None where the engine gave no logits.
        token_texts: of all tokens that are kept.
    """

    side: str
    setting: dict[str, Any]
    machine: dict[str, Any]
    prompts: list[list[int]]
    answers: list[Answer]
    digests: list[list[str] | None]
    token_texts: dict[int, str]

    def as_json(self) -> dict[str, Any]:
        """Return what the file holds."""
        return {
            "format": FORMAT,
            "side": self.side,
            "setting": self.setting,
            "machine": self.machine,
            "prompts": self.prompts,
            "answers": [
                {"tokens": one.tokens, "logprobs": [_pairs(step) for step in one.logprobs],
                 "logits_digests": digests}
                for one, digests in zip(self.answers, self.digests, strict=True)
            ],
            "token_texts": self.token_texts,
        }  # fmt: skip

    @staticmethod
    def read(path: str | Path) -> Recording:
        """Read a file.

        Raises:
            ValueError: it is no recording.
        """
        try:
            found: dict[str, Any] = json.loads(Path(path).read_text())
            if found["format"] == FORMAT:
                return _of_json(found)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise ValueError(
            f"{path} is no recording of this version: make one with `vllm parity record`."
        )


def record(
    setting: Setting, side: str, path: str | Path, num_candidates: int = NUM_CANDIDATES
) -> None:
    """Write what a side answers: tokens, the likeliest ones, and digests of each step's logits.

    Args:
        setting: what is asked.
        side: "hf", or a mode of the engine.
        path: of a JSON file.
        num_candidates: how many tokens of each step are kept with their logprobs, the likeliest.

    Raises:
        ValueError: there is no such side, or there are fewer or more candidates than 1 to 20.
    """
    if side not in SIDES:
        raise ValueError(f"side={side!r} is none of {', '.join(SIDES)}.")
    if not 1 <= num_candidates <= NUM_LOGPROBS:
        raise ValueError(f"candidates={num_candidates} must be 1 to {NUM_LOGPROBS}.")
    hf = HuggingFace(setting)
    prompts = hf.prompt_ids()
    if side == "hf":
        answers = hf.answers()
    else:
        with engine(setting, side, max(map(len, prompts))) as llm:
            answers = engine_answers(llm, setting, prompts)
    kept = [_shortened(answer, num_candidates) for answer in answers]
    tokens = sorted({token for one in kept for step in one.logprobs for token in step})
    digests = [None if one.logits is None else logits_digests(one.logits) for one in answers]
    texts = {token: hf.tokenizer.decode([token]) for token in tokens}
    found = Recording(side, setting.as_json(), machine(), prompts, kept, digests, texts)
    Path(path).write_text(json.dumps(found.as_json()) + "\n")


def logits_digests(logits: np.ndarray) -> list[str]:
    """Return a digest of the bits of each row of float32 [num_tokens, vocab_size]."""
    return [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in logits]


def _shortened(answer: Answer, count: int) -> Answer:
    """Return an answer with the likeliest tokens of each step, and the chosen one."""
    steps = []
    for token, step in zip(answer.tokens, answer.logprobs, strict=True):
        ranked = sorted(step, key=step.__getitem__, reverse=True)[:count]
        steps.append({one: step[one] for one in dict.fromkeys([*ranked, token])})
    return Answer(answer.tokens, steps)


def _pairs(step: dict[int, float]) -> list[tuple[int, float]]:
    return list(step.items())


def _of_json(found: dict[str, Any]) -> Recording:
    answers = [
        Answer(one["tokens"], [dict(map(tuple, step)) for step in one["logprobs"]])
        for one in found["answers"]
    ]
    digests = [one["logits_digests"] for one in found["answers"]]
    texts = {int(token): text for token, text in found["token_texts"].items()}
    return Recording(
        found["side"], found["setting"], found["machine"], found["prompts"], answers, digests, texts
    )
