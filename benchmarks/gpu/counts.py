"""What the main loops of the CUDA kernels cost on an H100, by their machine code.

    python -m benchmarks.gpu.counts            prints the table
    python -m benchmarks.gpu.counts --write    and writes it into docs/gpu.md

Three times come out: if all units work at once, if tensor cores and all else work by turns, and
what is to be expected between the two where a block of threads has two warpgroups that do not
wait for each other: see `Pass.expected`. Copies run beside all of it. What the rivals take is
published, too: see `RIVALS`. Nothing here is a measurement.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.gpu.passes import Pass, counted
from benchmarks.gpu.predictions import predictions
from benchmarks.gpu.table import PAGE, between, markdown

BEGIN, END = "<!-- the counts begin -->", "<!-- the counts end -->"


def rows_of_passes(passes: Mapping[str, Pass]) -> list[tuple[str, ...]]:
    """Return the first table: what a pass has, and for how long it keeps units busy."""
    rows = []
    for one in passes.values():
        units = one.units()
        names = ("tensor", "issue", "alu", "float32", "slow", "memory", "second cache")
        rows.append(
            (
                one.kernel.what,
                f"{one.resident_blocks()}",
                f"{one.instructions:,.0f}",
                f"{one.function.registers}",
                f"{one.kernel.bytes / 1024:.0f}",
                *(f"{units.get(name, 0):,.0f}" for name in names),
            )
        )
    return rows


def rows_of_times(passes: Mapping[str, Pass]) -> list[tuple[str, ...]]:
    """Return the second table: times beside the rivals', with the second cache's whole rate, and
    what is expected with a part of it.
    """
    rows: list[tuple[str, ...]] = []
    for one in predictions():
        own = passes[one.kernel]
        _, slower, _ = one.ratios(replace(own, reading=SLOWER_READING))
        rows.append((one.what, *(f"{ratio:.1f}" for ratio in (*one.ratios(own), slower))))
    return rows


PASSES = (
    *("a pass of a block", "blocks", "instructions", "registers", "KiB read", "tensor", "issue"),
    *("integers", "float32", "slow", "loads", "second cache"),
)
TIMES = (
    *("time beside the rival's", "units at once", "expected", "tensor cores by turns"),
    "expected, second cache at 2/3",
)
SLOWER_READING = 2 / 3
"""Of the second cache's rate, which is a peak: how much copies reach of it is not known."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/gpu.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        passes = counted(Path(folder))
    tables = ((PASSES, rows_of_passes(passes)), (TIMES, rows_of_times(passes)))
    for heads, rows in tables:
        table = Table(*heads)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    if options.write:
        text = "\n\n".join(markdown(*one) for one in tables)
        PAGE.write_text(between(PAGE.read_text(), BEGIN, END, text))


if __name__ == "__main__":
    main()
