"""The rows of the match table, and the page they make."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.match_causes import cause_of
from vllm.parity.differences import first_difference

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "penalty": {"do_sample": False, "repetition_penalty": 1.2},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 50, "top_p": 0.95},
}
"""Fields of ``GenerationConfig``; vLLM's ``SamplingParams`` have the same names."""


MODES = ("upstream", "hf_compat", "exact")
"""Those of ``vllm.parity`` that shall answer as Transformers does."""


@dataclass(frozen=True)
class MatchRow:
    """One mode of the engine beside ``generate()``, for one model and dtype.

    Attributes:
        model: its name.
        kind: what its weights are.
        dtype: of both sides.
        mode: of `MODES`.
        num_prompts: answered by both.
        num_tokens: of each answer.
        sequences: for each kind of request, answers that are equal to the last token.
        tokens: likewise, tokens before the first difference.
        equal_logits: steps whose logits have the same bits; None where the engine gives none.
        num_logits: of how many.
        cause: why not all are equal; the reason, if the mode did not start.
        cpu: on which it was measured; Transformers' bits are not those of another one.
    """

    model: str
    kind: str
    dtype: str
    mode: str
    num_prompts: int
    num_tokens: int
    sequences: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    equal_logits: int | None = None
    num_logits: int = 0
    cause: str | None = None
    cpu: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether every answer, and every logit that could be compared, is equal."""
        return (
            bool(self.sequences)
            and set(self.sequences.values()) == {self.num_prompts}
            and self.equal_logits in (None, self.num_logits)
        )


def compare_sides(
    model: str, kind: str, dtype: str, mode: str, hf: Path, ours: Path, error: str | None
) -> MatchRow:
    """Return the row of two files of `match_side`; `error` says why the second is missing."""
    expected = json.loads(hf.read_text())
    size = len(expected["tokens"]["greedy"]), len(expected["tokens"]["greedy"][0])
    if error is not None:
        return MatchRow(model, kind, dtype, mode, *size, cause=error)
    found = json.loads(ours.read_text())
    pairs = {
        name: list(zip(expected["tokens"][name], found["tokens"][name], strict=True))
        for name in KINDS
    }
    equal, total = _equal_digests(expected["digests"], found["digests"])
    row = MatchRow(
        model,
        kind,
        dtype,
        mode,
        *size,
        sequences={name: sum(a == b for a, b in pairs[name]) for name in KINDS},
        tokens={name: sum(_num_common(a, b) for a, b in pairs[name]) for name in KINDS},
        equal_logits=equal if found["digests"] else None,
        num_logits=total,
    )
    if row.is_equal or mode == "upstream":
        return row
    return MatchRow(**vars(row) | {"cause": cause_of(model, dtype, mode)})


def _num_common(a: list[int], b: list[int]) -> int:
    """Return the number of tokens before the first difference."""
    first = first_difference(a, b)
    return len(a) if first is None else first


def _equal_digests(a: list[list[str]], b: list[list[str]]) -> tuple[int, int]:
    pairs = [pair for x, y in zip(a, b, strict=False) for pair in zip(x, y, strict=True)]
    return sum(x == y for x, y in pairs), len(pairs)


def as_markdown(machine: dict[str, Any], rows: Iterable[MatchRow]) -> str:
    """Return the page."""
    rows = list(rows)
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "cpu")
    lines = [
        "# Answers equal to those of `generate()`",
        "",
        "Written by `python -m benchmarks.match_table`; [the same as JSON](match-table.json), with "
        "the tokens before first differences. Every cell is the number of answers that are equal "
        "to the last token: greedy / `repetition_penalty=1.2` / sampled with a seed for each "
        "prompt. *logits*: the share of steps whose logits have the bits of Hugging Face's, over "
        "16 steps of up to 32 greedy answers. Transformers answers prompt by prompt; the engines "
        "have 32 requests in flight. Without its flags the distribution is upstream vLLM, bit for "
        "bit; it does not draw Hugging Face's samples, so its third number is expected to be 0.",
        "",
        f"Measured with {facts}; all sides of a row on one CPU, which the last column names.",
        "",
        "| model | dtype | of | upstream | hf_compat | logits | exact | logits | CPU |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    found = {(row.model, row.dtype, row.mode): row for row in rows}
    causes: list[str] = []
    for model, dtype in dict.fromkeys((row.model, row.dtype) for row in rows):
        modes = [found[model, dtype, mode] for mode in MODES]
        cells = [_sequences(modes[0], causes)]
        for row in modes[1:]:
            cells += [_sequences(row, causes), _logits(row)]
        size = f"{modes[0].num_prompts} x {modes[0].num_tokens}"
        cells.append(modes[0].cpu)
        lines.append(f"| {model} ({modes[0].kind}) | {dtype} | {size} | {' | '.join(cells)} |")
    lines += ["", *(f"[{i}] {cause}\n" for i, cause in enumerate(causes, 1))]
    return "\n".join(lines).rstrip() + "\n"


def _sequences(row: MatchRow, causes: list[str]) -> str:
    if row.cause is not None and row.cause not in causes:
        causes.append(row.cause)
    mark = "" if row.cause is None else f" [{causes.index(row.cause) + 1}]"
    if not row.sequences:
        return f"-{mark}"
    return " / ".join(str(row.sequences[kind]) for kind in KINDS) + mark


def _logits(row: MatchRow) -> str:
    if row.equal_logits is None or not row.num_logits:
        return "-"
    return f"{row.equal_logits / row.num_logits:.1%}"
