"""The tables of what was measured, and of what will be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Column, Table

from benchmarks.gpu.engines import BATCHES
from benchmarks.gpu.measurements import Outcome
from benchmarks.gpu.schedule import Find, Planned

RATES = (*map(str, BATCHES), "prompt")
"""Keys of the values of an engine or a server."""


def whole(title: str) -> Column:
    """Return a column whose cells stay on one line."""
    return Column(title, no_wrap=True)


def what_happened(outcome: Outcome | None) -> str:
    """Return why there are no values, or why these may be a part; "" if there is nothing to say."""
    if outcome is None:
        return "not run: call again, with more MINUTES if it does not fit"
    return escape(outcome.failure or "")


def tables(names: Sequence[str], find: Find) -> Iterator[Table]:
    """Yield the tables of all measurements: of bits, kernels and engines."""
    kinds: dict[str, list[str]] = {"kernels": [], "engines": [], "bits": []}
    for name in names:
        head = name.partition(",")[0]
        is_kernel, is_engine = (
            head in ("products", "attention"),
            head in ("engine", "server", "model"),
        )
        kinds["kernels" if is_kernel else "engines" if is_engine else "bits"].append(name)
    if kinds["bits"]:
        yield bits_table(kinds["bits"], find)
    if kinds["kernels"]:
        yield kernels_table(kinds["kernels"], find)
    if kinds["engines"]:
        yield engines_table(kinds["engines"], find)


def bits_table(names: Sequence[str], find: Find) -> Table:
    """Return the table of bits: how many are those that were expected."""
    table = Table(whole("computed"), "equal", "of", "differing, or why there is nothing",
                  "seconds", title="bits")  # fmt: skip
    for name in names:
        outcome = find(name)
        if outcome is None or outcome.values is None:
            table.add_row(name, "-", "-", what_happened(outcome), "-")
            continue
        values = outcome.values
        during = f"during {values['during']}" if "during" in values else ""
        said = (shortened(values["differing"]), what_happened(outcome), escape(during))
        remark = "; ".join(filter(None, said))
        table.add_row(name, str(values["equal"]), str(values["of"]), remark, f"{outcome.seconds}")
    return table


def shortened(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return escape("; ".join(names[:3]) + more)


def kernels_table(names: Sequence[str], find: Find) -> Table:
    """Return the times of both sides of each shape."""
    table = Table(whole("kernel"), "shape", "portable, us", "torch, us", "ratio", title="kernels")
    for name in names:
        outcome = find(name)
        for shape, times in (outcome.values or {}).items() if outcome else ():
            if "failure" in times:
                table.add_row(name, shape, "-", "-", escape(times["failure"]))
                continue
            ours, theirs = times["portable"], times["torch"]
            row = (f"{ours:,.1f}", f"{theirs:,.1f}", f"{ours / theirs:.2f}")
            table.add_row(name, shape, *row)
        if outcome is None or outcome.failure:
            table.add_row(name, what_happened(outcome), "-", "-", "-")
    return table


def engines_table(names: Sequence[str], find: Find) -> Table:
    """Return tokens per second of engines and servers, and what they are beside plain ones."""
    titles = [f"{count} at once" for count in BATCHES]
    table = Table(whole("tokens/s (of plain)"), *map(whole, [*titles, "reading", "start, s"]),
                  "why there is nothing", title="answers")  # fmt: skip
    for name in names:
        outcome = find(name)
        if outcome is None or outcome.values is None:
            table.add_row(name, *["-"] * len(RATES), "-", what_happened(outcome))
        elif "gigabytes" in outcome.values:
            table.add_row(name, *["-"] * len(RATES), f"{outcome.seconds}", "")
        else:
            plain = find(", ".join([*name.split(", ")[:2], "plain"]))
            cells = [rate(outcome, key, plain) for key in RATES]
            table.add_row(name, *cells, f"{outcome.values['start']}", what_happened(outcome))
    return table


def rate(outcome: Outcome, key: str, plain: Outcome | None) -> str:
    """Return a rate, and what it is of that of the plain engine, as far as both were measured."""
    values = outcome.values or {}
    if key not in values:
        return "-"
    beside = (plain.values or {}).get(key) if plain is not None else None
    return f"{values[key]:,.0f}" + (f" ({values[key] / beside:.2f})" if beside else "")


def plan_table(found: Sequence[Planned], build: float, first: Sequence[str]) -> Table:
    """Return what would be measured, in which command, and for how long.

    Args:
        found: in the order of importance.
        build: seconds of the build, in the first command.
        first: names of those that must fit.
    """
    table = Table(whole("measurement"), "command", "minutes", "at most", "done after",
                  title="minutes on an H100, as expected")  # fmt: skip
    table.add_row("build", "1", minutes(build), "-", minutes(build))
    for number, one in enumerate(found):
        measured = one.measurement
        end = minutes(one.end) if one.call else "-"
        later = "later" if measured.unless is None else "if needed"
        command = str(one.call) if one.call else later
        cells = (command, minutes(measured.expected), minutes(measured.limit), end)
        is_last = measured.name in first and all(
            other.measurement.name not in first for other in found[number + 1 :]
        )
        table.add_row(measured.name, *cells, end_section=is_last)
    return table


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"
