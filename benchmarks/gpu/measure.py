"""Measures bits and speed on a GPU machine, the most important first, as long as there is time.

    python -m benchmarks.gpu.measure [--minutes 9] [--only bits] [--retry]
    python -m benchmarks.gpu.measure --plan      what, in which order, and how long it may take

What was run is not run again, unless --retry (what failed or was not equal) or --again asks for it;
what was measured of other sources comes last. Nothing is started whose limit is beyond the end of
the call.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console, RenderableType

from benchmarks.gpu import build
from benchmarks.gpu.measurements import Measurement
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
    parser.add_argument("--retry", action="store_true", help="what failed, or was not equal")
    parser.add_argument("--again", nargs="+", default=[], metavar="NAME", help="these, too")
    parser.add_argument("--first", action="store_true", help="leave out what may come later")
    parser.add_argument("--slower", type=float, default=1.0, help="factor of all limits")
    parser.add_argument("--plan", action="store_true", help="print what would be measured")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--began", type=float, help="when it began, in seconds since 1970")
    options = parser.parse_args()
    plan = Plan(options.device, options.tokens, options.rounds, options.model, options.second)
    measurements = [
        replace(one, limit=options.slower * one.limit)
        for one in plan.measurements((options.only,) if options.only else (BITS, BENCH))
        if one.name in plan.first() or not options.first
    ]
    unknown = set(options.again) - {one.name for one in measurements}
    if unknown:
        sys.exit(f"error: there is no measurement {unknown.pop()!r}: --plan has their names.")
    if options.plan:
        calls = [60 * options.minutes] * CALLS
        Console(width=110).print(
            plan_table(planned(measurements, calls, BUILD_SECONDS), BUILD_SECONDS, plan.first())
        )
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: PyTorch finds no GPU here: run this on a GPU machine, or --device cpu.")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("error: the call was ended."))
    with build.alone():
        measure(plan, measurements, options)


def measure(plan: Plan, measurements: list[Measurement], options: argparse.Namespace) -> None:
    """Run what was not run, as far as there is time, and print the tables of all that was."""
    out = os.environ.get("OUT")
    machine = environment(torch.device(options.device))
    sources = build.digest_of_sources()[:16]
    results = Results(machine, FOLDER, Path(out) if out else None, sources)
    known = [(one.name, results.of(one.name)) for one in measurements]
    failed = {name for name, outcome in known if outcome is not None and not outcome.is_good}
    again = frozenset([*options.again, *(failed if options.retry else ())])
    seconds = 60 * options.minutes
    if options.began is not None:
        seconds -= time.time() - options.began
    run_all(measurements, results, seconds, again)
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
