"""What is kept of measurements, whatever ends them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import (
    schedule,
)
from benchmarks.gpu.measurements import Measurement, Outcome
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.results import LOG_BYTES, Results
from tests.benchmarks.gpu.conftest import done, find_in, full_folder, wait_for
from tests.engines import ROOT

WAYS = ("values", "fails", "crashes", "hangs", "chatters")


STEM = "measured-nvidia-h100-80gb"


def results_in(folder: Path, out: Path | None = None, sources: str = "") -> Results:
    return Results({"device": "NVIDIA H100-80GB"}, folder, out, sources)


def test_every_end_leaves_a_record_and_its_log_and_the_rest_is_run(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    measurements = [measure(way, limit=4 if way == "hangs" else 60) for way in WAYS]
    out = tmp_path / "out"
    schedule.run_all(measurements, results_in(tmp_path / "results", out), 300)
    kept = json.loads((out / f"{STEM}.json").read_text())
    assert kept == json.loads((tmp_path / "results" / f"{STEM}.json").read_text())
    assert kept["machine"] == {"device": "NVIDIA H100-80GB"}
    ends = {one["name"]: (one["values"] is not None, one["failure"]) for one in kept["outcomes"]}
    assert ends == {
        "values": (True, None),
        "fails": (False, "ValueError: this model has no shape."),
        "crashes": (True, "it was ended by SIGSEGV; about to go"),
        "hangs": (False, "it was ended after 4 seconds"),
        "chatters": (True, None),
    }
    log = (out / f"{STEM}.log").read_text()
    assert [line.split(":")[0] for line in log.splitlines() if line.startswith("=== ")] == [
        f"=== {way}" for way in WAYS
    ]
    assert "Traceback (most recent call last)" in log
    assert log.count("--- standard error\n") == len(WAYS)


def test_a_full_folder_for_copies_costs_no_measurement(
    measure: Callable[..., Measurement], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = full_folder(tmp_path, f"{STEM}.json", f"{STEM}.log")
    schedule.run_all(
        [measure("values"), measure("fails")], results_in(tmp_path / "results", full), 300
    )
    kept = json.loads((tmp_path / "results" / f"{STEM}.json").read_text())
    assert [one["name"] for one in kept["outcomes"]] == ["values", "fails"]
    assert capsys.readouterr().out.count("is not written: [Errno 28] No space left") == 4


def test_a_call_goes_on_where_the_last_one_ended(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    """What was run is run again if that is asked for, once; and what was run otherwise."""
    measurements = [measure("values"), measure("fails"), measure("silent")]
    ran = ["values", "fails", "silent"]
    for again in ((), (), ("fails", "silent")):
        schedule.run_all(measurements, results_in(tmp_path), 120, frozenset(again))
        ran = list(dict.fromkeys(ran)) + list(again)
        assert (tmp_path / "ran").read_text().split() == ran
    other = measure("values", environment={"VLLM_FORK_CUDA_TENSOR_CORES": "int8"})
    schedule.run_all([other], results_in(tmp_path), 120)
    assert (tmp_path / "ran").read_text().split() == [*ran, "values"]


def test_what_was_measured_of_other_sources_comes_last(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    measurements = [measure("values"), measure("chatters")]
    schedule.run_all(measurements[:1], results_in(tmp_path, sources="a"), 120)
    schedule.run_all(measurements, results_in(tmp_path, sources="b"), 120)
    assert (tmp_path / "ran").read_text().split() == ["values", "chatters", "values"]
    kept = results_in(tmp_path).of("values")
    assert kept is not None
    assert kept.sources == "b"


def test_what_fails_to_make_a_folder_does_not_keep_the_others_waiting(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    model = measure("fails", makes=tmp_path / "model")
    schedule.run_all([model, measure("values")], results_in(tmp_path), 120)
    assert (tmp_path / "ran").read_text().split() == ["fails", "values"]


def test_a_folder_that_is_gone_is_made_again(tmp_path: Path) -> None:
    """As on a new machine that has the results of another one."""
    model = Measurement("model", "a.module", (), 1, 2, makes=tmp_path / "model")
    known = done("model", {"gigabytes": 16}, key=model.key)
    assert schedule.next_of([model], find_in({"model": known}), 9) is model
    (tmp_path / "model").mkdir()
    assert schedule.next_of([model], find_in({"model": known}), 9) is None


@pytest.mark.parametrize(
    ("values", "failure", "is_good"),
    [
        ({"all": 1.5}, None, True),
        ({"equal": 3, "of": 3, "errors": 0}, None, True),
        ({"equal": 3, "of": 3, "errors": 1}, None, False),
        ({"equal": 2, "of": 3}, None, False),
        ({"equal": 3, "of": 3}, "it was ended after 3 seconds", False),
        (None, "it was ended", False),
    ],
)
def test_bits_that_are_wrong_are_a_failure_that_can_be_run_again(
    values: dict[str, Any] | None, failure: str | None, is_good: bool
) -> None:
    assert done("bits", values, failure).is_good is is_good


@pytest.mark.parametrize(
    "text", ["", '{"outcomes": [', "[]", '{"outcomes": [{"name": 1, "b": 2}]}']
)
def test_a_record_that_is_broken_is_put_aside(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{STEM}.json").write_text(text)
    results = results_in(tmp_path)
    assert f"it is {STEM}.broken now" in capsys.readouterr().out
    assert (tmp_path / f"{STEM}.broken").read_text() == text
    results.add(done("a", {"x": 1}))
    assert results_in(tmp_path).of("a") is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_call_that_is_ended_leaves_no_process(number: int, tmp_path: Path) -> None:
    """Whoever ends it: a shell, a lost connection, the kernel."""
    code = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from benchmarks.gpu.measurements import Log, Measurement, run\n"
        "for one in (signal.SIGTERM, signal.SIGHUP):\n"
        "    signal.signal(one, lambda *_: sys.exit(1))\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "arguments = ('waits', str(folder / 'pid'))\n"
        "one = Measurement('m', 'tests.benchmarks.measured', arguments, 1, 60)\n"
        "run(one, Log.of('m', folder))\n"
    )
    call = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    file = tmp_path / "pid"
    wait_for(lambda: file.exists() and file.read_text().strip().isdigit())
    call.send_signal(number)
    call.wait(20)
    child = Path("/proc", file.read_text().strip(), "stat")
    wait_for(lambda: not child.exists() or child.read_text().split()[2] == "Z")


def test_the_numbers_of_two_gpus_are_kept_apart(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    for device in ("H100", "H200"):
        results = Results({"device": device}, tmp_path)
        assert results.of("values") is None
        schedule.run_all([measure("values")], results, 120)
    assert {file.name for file in tmp_path.glob("*.json")} == {
        "measured-h100.json",
        "measured-h200.json",
    }


def test_a_record_that_is_cut_short_is_never_seen(tmp_path: Path) -> None:
    """It takes the place of the one before when it is whole."""
    results = results_in(tmp_path)
    results.add(Outcome("a", {"x": 1}, None, 1.0, ""))
    (tmp_path / f"{STEM}.json.new").mkdir()  # so that it cannot be written
    results.add(Outcome("b", {"x": 2}, None, 1.0, ""))
    again = results_in(tmp_path)
    assert again.of("a") is not None
    assert again.of("b") is None


def test_the_logs_of_all_measurements_can_travel() -> None:
    """Files of up to 16 MiB can come back from such a machine."""
    assert len(Plan().measurements()) * 2 * LOG_BYTES < 16 << 20


def test_a_log_keeps_the_end_of_a_flood(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    schedule.run_all([measure("floods")], results_in(tmp_path), 120)
    log = (tmp_path / f"{STEM}.log").read_text()
    assert LOG_BYTES < len(log) < LOG_BYTES + 1000
    assert "line 199999 of many" in log
