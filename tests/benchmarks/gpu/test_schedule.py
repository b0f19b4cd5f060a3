"""Which measurement comes next."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
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


def test_what_explains_another_is_run_if_that_has_not_ended_well() -> None:
    """As of a kernel that hangs, which says nothing more; and once."""
    check, why = of("check", 60), replace(of("why", 60), unless="check")
    hung = done("check", {"equal": 1, "of": 1, "during": "norms"}, "it was ended after 60 seconds")
    for known, expected in (
        ({}, check),
        ({"check": done("check", {"equal": 7, "of": 7}, key=check.key)}, None),
        ({"check": done("check", {"equal": 6, "of": 7}, key=check.key)}, why),
        ({"check": replace(hung, key=check.key)}, why),
        ({"check": replace(hung, key=check.key), "why": done("why", {}, key=why.key)}, None),
    ):
        assert schedule.next_of([why, check], find_in(known), 300) is expected
    known = {"check": done("check", {"equal": 7, "of": 7}, key=check.key)}
    assert schedule.next_of([why, check], find_in(known), 300, frozenset(["why"])) is why


def test_a_self_check_that_fails_is_explained_at_once() -> None:
    """By the other kinds of products, and by kernels that begin one after the other."""
    plan = Plan().measurements()
    known = {plan[0].name: done(plan[0].name, None, "it was ended after 60 s", plan[0].key)}
    for name, variable in (
        ("self-check, mma", "VLLM_FORK_CUDA_TENSOR_CORES"),
        ("self-check, kernels in turn", "VLLM_FORK_CUDA_DEPENDENT_LAUNCH"),
    ):
        found = schedule.next_of(plan, find_in(known), 540)
        assert found is not None
        assert found.name == name
        assert set(found.environment) == {variable}
        known[name] = done(name, {"equal": 7, "of": 7}, key=found.key)
    found = schedule.next_of(plan, find_in(known), 540)
    assert found is not None
    assert found.name == "real shapes, 8B"


def test_what_needs_another_waits_for_its_values() -> None:
    engine = of("engine", 100, needs="model")
    for known, expected in (
        ({}, None),
        ({"model": done("model", None, "OSError: no space")}, None),
        ({"model": done("model", {"gigabytes": 16})}, engine),
    ):
        assert schedule.next_of([engine], find_in(known), 300) is expected


def test_what_matters_fits_into_half_an_hour() -> None:
    """In three commands of ten minutes with the build: kernels, then models and engines of 8B."""
    plan = Plan()
    found = schedule.planned(plan.measurements(), [540.0] * 3, BUILD_SECONDS)
    first = [one for one in found if one.measurement.name in plan.first()]
    assert [one.measurement.name for one in first] == [
        *("self-check", "real shapes, 8B", "memcheck", "products, 8B", "attention, 8B"),
        *("logits: attached, bfloat16", "logits: engine, bfloat16", "logits: graphs, bfloat16"),
        *("exact, bfloat16", "draws and penalties", "racecheck"),
        *("model, 8B", "engine, 8B, plain"),
        *("engine, 8B, deterministic", "engine, 8B, deterministic, eager"),
    ]
    assert [one for one in found if one.measurement.unless is None][: len(first)] == first
    assert first[3].call == 1
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
    assert "│ build                            │ 1         │" in done.stdout
    assert "engine, 8B, deterministic, eager" in done.stdout
    assert "self-check, mma                  │ if needed │" in done.stdout
