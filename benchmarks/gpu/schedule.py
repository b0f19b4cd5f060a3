"""Which measurement comes next in the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu.measurements import Measurement, Outcome, run
from benchmarks.gpu.results import Results

Find = Callable[[str], Outcome | None]
"""Returns what became of the measurement of a name."""


def next_of(
    measurements: Sequence[Measurement],
    find: Find,
    seconds: float,
    again: frozenset[str] = frozenset(),
    sources: str = "",
) -> Measurement | None:
    """Return the next that is to be run, and whose limit fits into the time that is left.

    So none is cut short because a call ends. First come those that were not run, in their order,
    then those of other sources, whose numbers may be others by now.

    Args:
        measurements: in their order.
        find: says what was run.
        seconds: that are left.
        again: names of those to be run though they were.
        sources: digest of what is measured now.
    """
    for is_wanted in (_is_new, _is_old):
        for one in measurements:
            known = find(one.name)
            is_due = is_wanted(one, known, sources) and not _is_needless(one, find)
            wanted = one.name in again or is_due
            if wanted and one.limit <= seconds and what_hinders(one, find) is None:
                return one
    return None


def _is_new(one: Measurement, known: Outcome | None, sources: str) -> bool:
    if known is None or known.key != one.key:
        return True
    return one.makes is not None and known.failure is None and not one.makes.exists()


def _is_old(one: Measurement, known: Outcome | None, sources: str) -> bool:
    return known is not None and known.sources != sources


def _is_needless(one: Measurement, find: Find) -> bool:
    """Whether there is nothing to explain."""
    if one.unless is None:
        return False
    explained = find(one.unless)
    return explained is None or explained.is_good


def what_hinders(one: Measurement, find: Find) -> str | None:
    """Return what is missing for a measurement to run; None if nothing is."""
    if one.needs is None:
        return None
    need = find(one.needs)
    if need is None:
        return f"not run: it needs {one.needs}"
    return None if need.values is not None else f"not run: it needs {one.needs}, which failed"


def run_all(
    measurements: Sequence[Measurement],
    results: Results,
    seconds: float,
    again: frozenset[str] = frozenset(),
) -> None:
    """Run those that were not, until the time is up.

    Args:
        measurements: in their order.
        results: gets the outcomes.
        seconds: for all of them.
        again: names of those that are run once more.
    """
    end = time.monotonic() + seconds
    waiting = list(measurements)
    while one := next_of(waiting, results.of, end - time.monotonic(), again, results.sources):
        waiting.remove(one)  # once in a call, whatever becomes of it
        outcome = run(one, results.log(one.name))
        results.add(outcome)
        print(f"{outcome.seconds:>7.1f} s  {outcome.name}  {outcome.failure or ''}", flush=True)


@dataclass(frozen=True)
class Planned:
    """When a measurement is thought to run.

    Attributes:
        measurement: which.
        call: of the command, counted from 1; 0 if it does not fit into those that there are.
        end: seconds after the first command's start; 0 if it does not fit.
    """

    measurement: Measurement
    call: int
    end: float


def planned(
    measurements: Sequence[Measurement], calls: Sequence[float], build: float
) -> list[Planned]:
    """Return when each runs if all take as long as expected.

    Args:
        measurements: in their order.
        calls: seconds of each command.
        build: seconds that the first one builds.
    """
    done: dict[str, Planned] = {}

    def find(name: str) -> Outcome | None:
        if name not in done:
            return None
        return Outcome(name, {}, None, 0.0, "", done[name].measurement.key)

    on_paper = [replace(one, makes=None) for one in measurements]
    begin = 0.0
    for number, length in enumerate(calls, start=1):
        used = build if number == 1 else 0.0
        while one := next_of(on_paper, find, length - used):
            used += one.expected
            done[one.name] = Planned(one, number, begin + used)
        begin += used
    return [done.get(one.name, Planned(one, 0, 0.0)) for one in measurements]
