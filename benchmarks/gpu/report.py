"""The tables of the stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.table import Column, Table

from benchmarks.gpu.measurements import Outcome

Find = Callable[[str], Outcome | None]
"""Returns what became of the measurement of a name."""


def whole(title: str) -> Column:
    """Return a column whose cells stay on one line."""
    return Column(title, no_wrap=True)


def what_happened(outcome: Outcome | None) -> str:
    """Return why there are no values."""
    if outcome is None:
        return "not run: the time was up; call the stage again"
    return outcome.failure or ""


def bits_table(names: Sequence[str], find: Find) -> Iterator[Table]:
    """Yield the table of digests: how many are those that are committed."""
    table = Table(
        whole("computed"), "equal", "of", "differing, or why there is nothing", title="bits"
    )
    for name in names:
        outcome = find(name)
        if outcome is None or outcome.values is None:
            table.add_row(name, "-", "-", what_happened(outcome))
            continue
        values = outcome.values
        table.add_row(name, str(values["equal"]), str(values["of"]), shortened(values["differing"]))
    yield table


def shortened(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "; ".join(names[:3]) + more


def bench_tables(names: Sequence[str], find: Find) -> Iterator[Table]:
    """Yield the tables of kernels and of engines."""
    kernels = [name for name in names if name.partition(",")[0] in ("products", "attention")]
    yield kernels_table(kernels, find)
    yield engines_table([name for name in names if name not in kernels], find)


def kernels_table(names: Sequence[str], find: Find) -> Table:
    """Return the times of both sides of each shape."""
    table = Table(whole("kernel"), "shape", "portable, us", "torch, us", "ratio", title="kernels")
    for name in names:
        outcome = find(name)
        if outcome is None or outcome.values is None:
            table.add_row(name, what_happened(outcome), "-", "-", "-")
            continue
        for shape, times in outcome.values.items():
            ours, theirs = times["portable"], times["torch"]
            row = (f"{ours:,.1f}", f"{theirs:,.1f}", f"{ours / theirs:.2f}")
            table.add_row(name, shape, *row)
    return table


def engines_table(names: Sequence[str], find: Find) -> Table:
    """Return tokens per second of engines and servers, and what they take beside plain."""
    table = Table(whole("what"), "20 prompts, tok/s", "/ plain", "1 prompt, tok/s", "/ plain",
                  "start, s", "why there is nothing", title="answers")  # fmt: skip
    for name in names:
        outcome = find(name)
        if outcome is None or outcome.values is None:
            table.add_row(name, *"-----", what_happened(outcome))
        elif "gigabytes" in outcome.values:
            table.add_row(name, *"----", f"{outcome.seconds}", "")
        else:
            plain = find(", ".join([*name.split(", ")[:2], "plain"]))
            values = outcome.values
            cells = [
                cell
                for key in ("all", "alone")
                for cell in (f"{values[key]:,.0f}", ratio(values[key], key, plain))
            ]
            table.add_row(name, *cells, f"{values['start']}", "")
    return table


def ratio(rate: float, key: str, plain: Outcome | None) -> str:
    """Return a rate as a multiple of that of the plain engine, where that was measured."""
    if plain is None or plain.values is None:
        return "-"
    return f"{rate / plain.values[key]:.2f}"
