"""The rows of the table of architectures, and the page they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.architectures.sides import MODES, Side

PROMISES = ("hf_compat", "exact", "deterministic")
"""Modes of which a cell that is not full needs a cause."""

_FLOAT32 = (
    "In float32 hf_compat computes with vLLM's kernels, which add in another order: bits differ, "
    'and tokens do where two are that close. `hf_compat="exact"` has the bits.'
)
_UNEXPLAINED = "Not explained yet: `vllm parity` shows which operation is the first to differ."
_ORDER = ("upstream", *PROMISES, "split_qkv")


@dataclass(frozen=True)
class Cell:
    """One mode of the engine, for one model and dtype.

    Attributes:
        answers: that are those of `generate()` to the last token; None if the mode gave none.
        logits: steps whose logits have the bits of the other side.
        causes: why not all do, or why there are no answers.
    """

    answers: int | None = None
    logits: int = 0
    causes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A model in one dtype.

    Attributes:
        type: of the model.
        variant: its name; empty for the base.
        dtype: of all sides.
        num_answers: that each side was asked for.
        num_logits: steps of them all.
        cells: by modes.
        error: why Transformers itself gives no answers; empty if it does.
        machine: that it was measured with.
    """

    type: str
    variant: str
    dtype: str
    num_answers: int = 0
    num_logits: int = 0
    cells: dict[str, Cell] = field(default_factory=dict)
    error: str = ""
    machine: str = ""

    def is_full(self, mode: str) -> bool:
        """Whether all answers of a mode are equal, and all logits that it promises."""
        cell = self.cells[mode]
        has_bits = cell.logits == self.num_logits or (mode == "hf_compat" and self.is_float32)
        return cell.answers == self.num_answers and has_bits

    @property
    def is_float32(self) -> bool:
        """Whether hf_compat promises answers alone."""
        return self.dtype == "float32"


def row_of(model_type: str, variant: str, dtype: str, sides: dict[str, Side]) -> Row:
    """Compare the engine's modes with Transformers.

    Args:
        model_type: of the model.
        variant: its name.
        dtype: of all sides.
        sides: by names: "hf", "attached" and all of `MODES`.
    """
    hf = sides["hf"]
    if hf.error:
        return Row(model_type, variant, dtype, error=hf.error)
    cells = {mode: _cell(mode, dtype, sides) for mode in MODES}
    return Row(model_type, variant, dtype, len(hf.tokens), sum(map(len, hf.digests)), cells)


def _cell(mode: str, dtype: str, sides: dict[str, Side]) -> Cell:
    own, other = sides[mode], sides["attached" if mode == "deterministic" else "hf"]
    if own.error:
        return Cell(causes=(own.error,))
    if other.error:
        return Cell(causes=(f"attach(): {other.error}",))
    answers = sum(one == two for one, two in zip(other.tokens, own.tokens, strict=True))
    logits = _equal(other.digests, own.digests)
    is_full = answers == len(own.tokens) and logits == sum(map(len, own.digests))
    causes = () if is_full or mode not in PROMISES else _causes(mode, dtype, own)
    return Cell(answers, logits, causes)


def _equal(some: list[list[str]], others: list[list[str]]) -> int:
    pairs = [pair for a, b in zip(some, others, strict=True) for pair in zip(a, b, strict=True)]
    return sum(one == other for one, other in pairs)


def _causes(mode: str, dtype: str, own: Side) -> tuple[str, ...]:
    if mode == "hf_compat" and dtype == "float32":
        return (_FLOAT32,)
    return tuple(own.causes) or (_UNEXPLAINED,)


def as_text(machine: dict[str, Any]) -> str:
    """Return what a row has as its machine."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def as_markdown(rows: Iterable[Row]) -> str:
    """Return the page."""
    rows = list(rows)
    causes: list[str] = []
    table = [_line(row, causes) for row in rows]
    lines = [
        "# Architectures",
        "",
        "Written by `python -m benchmarks.architectures`; [the same as JSON](architectures.json). "
        "Each row is a small random model: the configuration of a known checkpoint, or a variant "
        "that other checkpoints have, with few layers and small sizes. Six prompts of 5 to 100 "
        "tokens get 16 tokens each, greedily, with `repetition_penalty=1.15`: one by one from "
        "`generate()`, all at once from an engine in each mode.",
        "",
        "A cell has the number of answers that are equal to the last token, and the share of "
        "steps whose logits have the same bits: as `generate()`, and with *deterministic* as "
        "`generate()` of the same model in `attach()`. hf_compat promises no bits in float32. A "
        "dash is a mode that does not start. Without its flags (*upstream*), and with split_qkv "
        "alone, an engine promises nothing of `generate()`.",
        "",
        *_machines(rows),
        "",
        *_summary(rows),
        "",
        "| model | dtype | " + " | ".join(_ORDER) + " |",
        "|---|---|" + "---|" * len(_ORDER),
        *table,
        "",
        *(f"[{i}] {cause}\n" for i, cause in enumerate(causes, 1)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _machines(rows: Sequence[Row]) -> list[str]:
    """Return what the rows were measured with; which types, where it was not one machine."""
    types = {
        one: list(dict.fromkeys(row.type for row in rows if row.machine == one))
        for one in dict.fromkeys(row.machine for row in rows)
    }
    if len(types) == 1:
        return [f"Measured with {one}." for one in types]
    lines = [f"- {one}: {', '.join(own)}" for one, own in types.items()]
    return ["Measured with:", "", *lines]


def _summary(rows: Sequence[Row]) -> list[str]:
    """Return how many models are full in each mode."""
    lines = ["| full | of | " + " | ".join(PROMISES) + " |", "|---|---|" + "---|" * len(PROMISES)]
    for dtype in dict.fromkeys(row.dtype for row in rows):
        own = [row for row in rows if row.dtype == dtype and not row.error]
        types = {row.type for row in own}
        counts = []
        for mode in PROMISES:
            partly = {row.type for row in own if not row.is_full(mode)}
            full = Counter(row.is_full(mode) for row in own)[True]
            counts.append(f"{len(types - partly)} types, {full} models")
        lines.append(f"| {dtype} | {len(types)} types, {len(own)} models | {' | '.join(counts)} |")
    return lines


def _line(row: Row, causes: list[str]) -> str:
    name = row.type + (f", {row.variant}" if row.variant else "")
    if row.error:
        cells = [f"-{_marks((f'Transformers: {row.error}',), causes)}"] + ["-"] * (len(_ORDER) - 1)
    else:
        cells = [_text(row, row.cells[mode], causes) for mode in _ORDER]
    return f"| {name} | {row.dtype} | {' | '.join(cells)} |"


def _text(row: Row, cell: Cell, causes: list[str]) -> str:
    marks = _marks(cell.causes, causes)
    if cell.answers is None:
        return f"-{marks}"
    return f"{cell.answers}, {cell.logits / row.num_logits:.0%}{marks}"


def _marks(own: tuple[str, ...], causes: list[str]) -> str:
    """Return the numbers of causes, which are appended to all of them if they are new."""
    causes += [one for one in own if one not in causes]
    numbers = [str(causes.index(one) + 1) for one in own]
    return f" [{', '.join(numbers)}]" if numbers else ""
