"""Which measurement comes next in the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.gpu.measurements import Measurement, Outcome, run
from benchmarks.gpu.results import Results

Find = Callable[[str], Outcome | None]
"""Returns what became of the measurement of a name."""


def next_of(
    measurements: Sequence[Measurement], find: Find, seconds: float, again: frozenset[str]
) -> Measurement | None:
    """Return the first that was not run and whose limit fits into the time that is left.

    So none is cut short because a call ends. One whose need has failed is passed over.

    Args:
        measurements: in their order.
        find: says what was run.
        seconds: that are left.
        again: names of those to be run though they were.
    """
    for one in measurements:
        if (find(one.name) is not None and one.name not in again) or one.limit > seconds:
            continue
        need = None if one.needs is None else find(one.needs)
        if one.needs is None or (need is not None and need.values is not None):
            return one
    return None


def run_all(
    measurements: Sequence[Measurement], results: Results, seconds: float, *, retry: bool = False
) -> None:
    """Run those that were not, until the time is up.

    Args:
        measurements: in their order.
        results: gets the outcomes.
        seconds: for all of them.
        retry: whether those that have failed before are run once more.
    """
    end = time.monotonic() + seconds
    failed = (one.name for one in measurements if _has_failed(results.of(one.name)))
    again = frozenset(failed) if retry else frozenset()
    while one := next_of(measurements, results.of, end - time.monotonic(), again):
        again -= {one.name}
        outcome = run(one, results.log(one.name))
        results.add(outcome)
        print(f"{outcome.seconds:>7.1f} s  {outcome.name}  {outcome.failure or ''}", flush=True)


def _has_failed(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.failure is not None


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
        return Outcome(name, {}, None, 0.0, "") if name in done else None

    begin = 0.0
    for number, length in enumerate(calls, start=1):
        used = build if number == 1 else 0.0
        while one := next_of(measurements, find, length - used, frozenset()):
            used += one.expected
            done[one.name] = Planned(one, number, begin + used)
        begin += used
    return [done.get(one.name, Planned(one, 0, 0.0)) for one in measurements]
