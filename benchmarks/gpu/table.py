"""The table of docs/gpu.md: what is predicted, what an emulation shows, what GPUs have measured.

python -m benchmarks.gpu.table                      writes it into docs/gpu.md
cp build/gpu/results/measured-*.json docs/measured  before, to add a machine to it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.measurements import ROOT, Outcome

PAGE = ROOT / "docs" / "gpu.md"
MEASURED = ROOT / "docs" / "measured"
BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"

Outcomes = Mapping[str, Outcome]
"""Of a machine, by name."""

Cell = Callable[[Outcomes], str | None]
"""Returns a measured figure with its date; None if it was not measured."""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        what: is measured.
        predicted: before anything ran, from counts of instructions and published rates.
        emulated: what tests show that run the kernels thread by thread on a CPU.
        measured: reads a machine's outcomes.
    """

    what: str
    predicted: str
    emulated: str
    measured: Cell


def equal(name: str) -> Cell:
    """Read how many results of a measurement have the bits that they must have."""

    def cell(outcomes: Outcomes) -> str | None:
        return dated(outcomes.get(name), counts)

    return cell


def counts(values: Mapping[str, Any]) -> str:
    """Return how many results are equal, and how many errors there were if that was counted."""
    errors = f", {values['errors']} errors" if values.get("errors") else ""
    return f"{values['equal']} of {values['of']}{errors}"


def products(rows: int, model: str = "8B") -> Cell:
    """Read the time of a layer's four products as a multiple of cuBLAS'."""

    def cell(outcomes: Outcomes) -> str | None:
        matrices = ("qkv", "o", "gate_up", "down")
        shapes = [f"{matrix}, {rows}" for matrix in matrices]
        return dated(outcomes.get(f"products, {model}"), lambda values: multiple(values, shapes))

    return cell


def attention(shape: str, model: str = "8B") -> Cell:
    """Read the time of attention as a multiple of PyTorch's."""

    def cell(outcomes: Outcomes) -> str | None:
        return dated(outcomes.get(f"attention, {model}"), lambda values: multiple(values, [shape]))

    return cell


def step(key: str, mode: str = "deterministic", model: str = "8B") -> Cell:
    """Read the time of an engine as a multiple of the plain one's."""

    def cell(outcomes: Outcomes) -> str | None:
        plain = outcomes.get(f"engine, {model}, plain")
        beside = (plain.values or {}).get(key) if plain else None

        def ratio(values: Mapping[str, Any]) -> str:
            return f"{beside / values[key]:.2f}" if beside and values[key] else ""

        return dated(outcomes.get(f"engine, {model}, {mode}"), ratio)

    return cell


def dated(outcome: Outcome | None, figure: Callable[[Mapping[str, Any]], str]) -> str | None:
    """Return a figure of an outcome with its date; None if its values do not have it."""
    if outcome is None or outcome.values is None:
        return None
    try:
        found = figure(outcome.values)
    except KeyError:  # it was ended before that was measured
        return None
    part = f"; a part: {outcome.failure}" if outcome.failure else ""
    return f"{found} ({outcome.date[:10]}{part})" if found else None


def multiple(values: Mapping[str, Any], shapes: list[str]) -> str:
    """Return the sum of our times of some shapes as a multiple of PyTorch's."""
    ours, theirs = (sum(values[shape][side] for shape in shapes) for side in ("portable", "torch"))
    return f"{ours / theirs:.2f}"


def counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"


_ALL = "all equal"

ROWS = (
    Row("bits: the start-up check", "", _ALL, equal("self-check")),
    Row("bits: single operations, committed digests", "", _ALL, equal("operations")),
    Row("bits: an 8B Llama's shapes, beside the CPU", "", "", equal("real shapes, 8B")),
    Row("bits: the same, digits as bfloat16", "", "", equal("real shapes, 8B, bfloat16 cores")),
    Row("compute-sanitizer memcheck of the check", "", "", equal("memcheck")),
    Row("compute-sanitizer racecheck of the check", "", "", equal("racecheck")),
    Row("bits: logits of attached models", "", _ALL, equal("logits: attached, bfloat16")),
    Row("bits: logits of an engine", "", _ALL, equal("logits: engine, bfloat16")),
    Row("bits: logits of an engine with CUDA graphs", "", _ALL, equal("logits: graphs, bfloat16")),
    Row("exact mode: logits of `generate()` there", "", "", equal("exact, bfloat16")),
    Row("hf_compat in bfloat16: the same", "", "", equal("hf_compat, bfloat16")),
    Row("seeded draws and penalties of PyTorch there", "", "", equal("draws and penalties")),
    *(
        Row(f"time of a layer's products / cuBLAS, {counted(rows)}", predicted, "", products(rows))
        for rows, predicted in (
            (1, "1.0-1.1"), (8, "1.1"), (64, "1.1"), (256, "1.6-2.3"), (2048, "1.4-2.1"),
            (8192, "1.4-2.1"),
        )
    ),
    *(
        Row(f"time of attention / PyTorch's, {shape}", predicted, "", attention(shape))
        for shape, predicted in (
            ("decode, 1 x 2048", "2"), ("decode, 8 x 2048", "1.5"),
            ("decode, 64 x 2048", "1.3-1.6"), ("decode, 256 x 2048", "1.3-1.6"),
            ("prompt, 2048", "2-3.3"), ("prompt, 8192", "1.8-3.1"),
        )
    ),
    *(
        Row(f"time of an engine / the plain one, {title}", predicted, "", step(key))
        for key, title, predicted in (
            ("1", "1 answer at once", "1.25-1.3"), ("8", "8", "1.25"), ("64", "64", "1.4"),
            ("prompt", "reading 2,048 tokens", "1.7-2.3"),
        )
    ),
    Row("the same without CUDA graphs, 1 answer at once", "1.6-2", "",
        step("1", "deterministic, eager")),
)  # fmt: skip
"""Predictions are estimates for one H100 and an 8B Llama; see docs/gpu.md."""


def machines() -> Iterator[tuple[str, Outcomes]]:
    """Yield the names of the machines that have measured, and their outcomes."""
    for file in sorted(MEASURED.glob("measured-*.json")):
        found = json.loads(file.read_text())
        if found["machine"]["device"] == "cpu":  # of a rehearsal
            continue
        outcomes = (Outcome(**one) for one in found["outcomes"])
        yield found["machine"]["device"], {one.name: one for one in outcomes}


def table() -> str:
    """Return the table in Markdown; a cell without a figure is empty."""
    columns = list(machines()) or [("a GPU", {})]
    titles = (
        "",
        "predicted, H100",
        "emulated on a CPU",
        *(f"measured, {name}" for name, _ in columns),
    )
    rows: list[tuple[str, ...]] = []
    for row in ROWS:
        found = [row.measured(outcomes) or "" for _, outcomes in columns]
        rows.append((row.what, row.predicted, row.emulated, *found))
    return markdown(titles, rows)


def markdown(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(in_cell, line))} |" for line in lines)


def in_cell(text: str) -> str:
    """Return a text that ends no cell and no line."""
    return " ".join(text.split()).replace("|", "\\|")


def page(text: str) -> str:
    """Return the page with the table in its place."""
    return between(text, BEGIN, END, table())


def between(text: str, begin: str, end: str, content: str) -> str:
    """Return a text with another content between two marks."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{content}\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
