"""Which measurement comes next."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

from benchmarks.gpu import (
    schedule,
)
from benchmarks.gpu.measurements import Log, Measurement
from benchmarks.gpu.plan import BENCH, BITS, BUILD_SECONDS, Plan
from tests.benchmarks.gpu.conftest import done, find_in
from tests.engines import ROOT


def of(name: str, limit: float, needs: str | None = None) -> Measurement:
    return Measurement(name, "a.module", (), limit / 2, limit, needs)


def test_nothing_is_started_that_might_not_be_done_in_time() -> None:
    """What is shorter may come before it."""
    one, two = of("long", 300), of("short", 100)
    assert schedule.next_of([one, two], find_in({}), 300) is one
    assert schedule.next_of([one, two], find_in({}), 299) is two
    assert schedule.next_of([one, two], find_in({}), 99) is None


def test_what_needs_another_waits_for_its_values() -> None:
    engine = of("engine", 100, needs="model")
    for known, expected in (
        ({}, None),
        ({"model": done("model", None, "OSError: no space")}, None),
        ({"model": done("model", {"gigabytes": 16})}, engine),
    ):
        assert schedule.next_of([engine], find_in(known), 300) is expected


def test_what_matters_fits_into_half_an_hour() -> None:
    """In three commands of ten minutes with the build: bits, then kernels and engines of 8B."""
    plan = Plan()
    found = schedule.planned(plan.measurements(), [540.0] * 3, BUILD_SECONDS)
    first = [one for one in found if one.measurement.name in plan.first()]
    assert [one.measurement.name for one in first] == [
        *("self-check", "real shapes, 8B", "memcheck", "logits: attached, bfloat16"),
        *("logits: engine, bfloat16", "logits: graphs, bfloat16", "exact, bfloat16"),
        *("draws and penalties", "racecheck"),
        *("products, 8B", "attention, 8B", "model, 8B", "engine, 8B, plain"),
        *("engine, 8B, deterministic", "engine, 8B, deterministic, eager"),
    ]
    assert found[: len(first)] == first
    assert all(1 <= one.call <= 3 for one in first)
    assert max(one.end for one in first) <= 28 * 60
    assert all(one.end <= 540 * one.call for one in found if one.call)


def test_measurements_have_names_of_their_own_and_exist() -> None:
    plan = Plan()
    found = plan.measurements()
    assert len({one.name for one in found}) == len(found) >= 40
    assert len({Log.of(one.name, ROOT) for one in found}) == len(found)
    assert all(find_spec(one.module) for one in found)
    assert all(one.expected <= one.limit <= 360 for one in found)
    names = [one.name for one in found]
    assert all(names.index(one.needs) < i for i, one in enumerate(found) if one.needs)
    kinds = [plan.measurements((kind,)) for kind in (BITS, BENCH)]
    assert sorted(names) == sorted(one.name for kind in kinds for one in kind)


def test_the_plan_is_printed_without_a_gpu() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.measure", "--plan"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "│ build                            │ 1       │" in done.stdout
    assert "engine, 8B, deterministic, eager" in done.stdout
