"""Measures bits and speed on a GPU machine, the most important first, as long as there is time.

    python -m benchmarks.gpu.measure [--minutes 9] [--only bits] [--retry]
    python -m benchmarks.gpu.measure --plan      what, in which order, and how long it may take

What was run is not run again, unless it failed and --retry is given; nothing is started whose limit
is beyond the end of the call.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console, RenderableType

from benchmarks.gpu.plan import BENCH, BITS, BUILD_SECONDS, Plan
from benchmarks.gpu.report import plan_table, tables
from benchmarks.gpu.results import FOLDER, Results
from benchmarks.gpu.schedule import planned, run_all
from benchmarks.machine import environment

CALLS = 3
"""Commands that `--plan` has room for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="8B", help="that is measured first")
    parser.add_argument("--second", default="1B", help="that is measured if there is time")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[BITS, BENCH])
    parser.add_argument("--retry", action="store_true", help="what failed before")
    parser.add_argument("--first", action="store_true", help="leave out what may come later")
    parser.add_argument("--slower", type=float, default=1.0, help="factor of all limits")
    parser.add_argument("--plan", action="store_true", help="print what would be measured")
    parser.add_argument(
        "--minutes", type=float, default=float(os.environ.get("MINUTES") or 9), help="of this call"
    )
    options = parser.parse_args()
    plan = Plan(options.device, options.tokens, options.rounds, options.model, options.second)
    measurements = [
        replace(one, limit=options.slower * one.limit)
        for one in plan.measurements((options.only,) if options.only else (BITS, BENCH))
        if one.name in plan.first() or not options.first
    ]
    if options.plan:
        calls = [60 * options.minutes] * CALLS
        Console(width=110).print(
            plan_table(planned(measurements, calls, BUILD_SECONDS), BUILD_SECONDS, plan.first())
        )
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no GPU here: run this on a GPU machine, or --device cpu.")
    out = os.environ.get("OUT")
    machine = environment(torch.device(options.device))
    results = Results(machine, FOLDER, Path(out) if out else None)
    run_all(measurements, results, 60 * options.minutes, retry=options.retry)
    text = text_of(tables(told(plan, results), results.of))
    results.keep("tables.txt", text)
    print(text)


def told(plan: Plan, results: Results) -> list[str]:
    """Return the names of what was run, in any call, and of what comes first."""
    names = [one.name for one in plan.measurements()]
    return [name for name in names if results.of(name) is not None or name in plan.first()]


def text_of(found: Iterable[RenderableType]) -> str:
    """Return tables as text."""
    console = Console(width=120, file=io.StringIO())
    for one in found:
        console.print(one)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


if __name__ == "__main__":
    main()
