"""The script of a GPU machine, with a Python that only pretends to measure."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import summary
from tests.engines import ROOT

PRETENDS = """#!{python}
import json, os, sys, time
given = sys.argv[1:]
if given[0].endswith("summary.py"):
    os.execv({python!r}, [{python!r}, *given])
module, *rest = given[1:]
name = " ".join([module.removeprefix("benchmarks.gpu."), *rest[:1]])
fault = json.loads(os.environ["FAULTS"]).get(name)
with open("calls.txt", "a") as calls:
    variables = ("VLLM_FORK_CUDA_DEPENDENT_LAUNCH", "VLLM_FORK_CUDA_TENSOR_CORES", "VLLM_HOST_IP")
    print(name, *(os.environ.get(one, "-") for one in variables), file=calls)
counted = {{"equal": 2, "of": 2, "differing": {{}}}}
print(json.dumps({{**counted, "during": "products"}}), flush=True)
if fault == "hang":
    time.sleep(1000)
if fault == "crash":
    os.abort()
if fault == "nothing":
    sys.exit(0)
if fault == "error":
    raise OSError("a disk error")
if fault == "other bits but with mma" and os.environ.get(variables[1]) == "mma":
    fault = None
if fault and fault.startswith("other bits"):
    print(json.dumps({{"equal": 1, "of": 2, "differing": {{"products, qkv: norm, 5": 1}}}}))
    sys.exit(1)
print(json.dumps(counted))
"""


class Call:
    """A call of run.sh in a folder of its own.

    Attributes:
        folder: where it runs.
        status: of the script.
        lines: what it printed.
    """

    def __init__(
        self, folder: Path, number: str, faults: dict[str, str], ended_in: str = "", **more: str
    ) -> None:
        """`ended_in`: the step that runs when the script gets a SIGTERM."""
        self.folder = folder
        for name in ("run.sh", "summary.py"):
            (folder / "benchmarks" / "gpu").mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / "benchmarks" / "gpu" / name, folder / "benchmarks" / "gpu" / name)
        python = folder / "python"
        python.write_text(PRETENDS.format(python=sys.executable))
        python.chmod(0o755)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHON": str(python),
            "OUT": str(folder / "out"),
            "FAULTS": json.dumps(faults),
        }
        running = subprocess.Popen(
            [str(folder / "benchmarks/gpu/run.sh"), number], stdin=subprocess.DEVNULL, text=True,
            env=environment | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        if ended_in:
            while not any(one.startswith(ended_in) for one in self.calls):
                time.sleep(0.1)
            running.send_signal(signal.SIGTERM)
        output, self.errors = running.communicate(timeout=300)
        self.status, self.lines = running.returncode, output.splitlines()

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls.txt"
        return file.read_text().splitlines() if file.exists() else []

    def row(self, name: str) -> str:
        """Return what the table says of a step."""
        (found,) = (line for line in self.lines if line.startswith(f"| {name} |"))
        return found.removeprefix(f"| {name} | ").removesuffix(" |")


def test_a_call_whose_bits_are_all_equal_leads_to_the_second(tmp_path: Path) -> None:
    first = Call(tmp_path, "1", {})
    assert (first.status, first.lines[-1]) == (0, "all bits equal: call 2")
    assert first.row("bits: shapes") == "2 of 2 equal"
    assert not any("bits start mma" in one for one in first.calls)
    assert all(one.endswith(" 127.0.0.1") for one in first.calls)  # there may be no network
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"table.txt", "results.json", "log.txt"}
    steps = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {one["name"] for one in steps} >= set(summary.NEEDED)
    second = Call(tmp_path, "2", {})
    assert (second.status, second.lines[-1]) == (0, "both calls are done: keep the numbers")
    assert second.row("bits: shapes") == "2 of 2 equal"  # of the first one


def test_whatever_a_step_does_the_others_run(tmp_path: Path) -> None:
    faults = {
        "bits start": "other bits", "bits draws": "crash", "generate": "error",
        "probes": "crash", "exact_bits exact": "error", "engines plain": "crash",
    }  # fmt: skip
    call = Call(tmp_path, "1", faults)
    assert call.status == 1
    assert call.lines[-1] == "give back, mend: probes, bits: start, bits: draws, bits: exact"
    assert call.row("bits: start") == "1 of 2 equal; not products, qkv: norm, 5"
    assert "ended by SIGABRT" in call.row("bits: draws")
    assert call.row("bits: exact").endswith("OSError: a disk error")
    assert call.row("bits: engine") == "2 of 2 equal"
    assert "engines batch-invariant 0 - 127.0.0.1" in call.calls
    # Kernels that begin early are off, and which of two features is to blame is tried.
    assert "bits start 0 mma 127.0.0.1" in call.calls
    assert all(" 0 " in one for one in call.calls if not one.startswith(("pack", "probes")))


def test_engines_start_with_the_feature_off_that_is_to_blame(tmp_path: Path) -> None:
    """Or the wrong bit at the start would hide what else there is."""
    call = Call(tmp_path, "1", {"bits start": "other bits but with mma"})
    assert call.lines[-1] == "give back, mend: bits: start"
    variable = "VLLM_FORK_CUDA_TENSOR_CORES=mma"
    assert call.row(f"bits of engines are tried with {variable}") == "done"
    assert "model_bits graphs - mma 127.0.0.1" in call.calls
    assert "engines deterministic - - 127.0.0.1" in call.calls


def test_what_is_left_of_an_earlier_attempt_has_no_effect(tmp_path: Path) -> None:
    left = {"VLLM_FORK_CUDA_DEPENDENT_LAUNCH": "0", "VLLM_FORK_CUDA_TENSOR_CORES": "mma"}
    call = Call(tmp_path, "1", {}, **left)
    assert all(one.endswith(" - - 127.0.0.1") for one in call.calls)


def test_a_status_of_0_without_results_is_not_good(tmp_path: Path) -> None:
    call = Call(tmp_path, "1", {"bits operations": "nothing"})
    assert (call.status, call.lines[-1]) == (1, "give back, mend: bits: operations")


@pytest.mark.parametrize("step", ["probes", "model_bits graphs"], ids=["alone", "beside others"])
def test_a_call_that_is_ended_tells_what_it_has_and_leaves_nothing(
    tmp_path: Path, step: str
) -> None:
    begin = time.monotonic()
    call = Call(tmp_path, "1", {step: "hang"}, ended_in=step)
    assert time.monotonic() - begin < 60  # the step's own limit is later
    assert call.status == 1
    assert call.lines[-1].startswith("give back, mend: ")
    assert call.row("unpack") == "2 of 2 equal"
    time.sleep(4)
    mine = str(tmp_path / "python").encode()
    running = [file for file in Path("/proc").glob("[0-9]*/cmdline") if mine in read(file)]
    assert running == []


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process has ended
        return b""


def test_a_step_that_hangs_ends_at_its_limit_and_what_has_no_time_says_so(tmp_path: Path) -> None:
    call = Call(tmp_path, "1", {"probes": "hang"}, SECONDS_IN_ALL="14")
    assert call.status == 1
    assert "it was ended at its limit" in call.row("probes")
    assert call.row("times") == "no time was left"
    assert call.lines[-1].startswith("give back, mend: probes, bits: start, bits: operations")


def test_the_second_call_on_another_machine_unpacks_and_says_so(tmp_path: Path) -> None:
    call = Call(tmp_path, "2", {})
    assert call.calls[0].startswith("pack --unpack")
    assert (call.status, call.lines[-1]) == (
        0,
        "call 2 ran on a machine without the results of call 1: keep the numbers",
    )


@pytest.mark.parametrize("number", ["1", "2"])
def test_without_what_the_archive_holds_nothing_runs(tmp_path: Path, number: str) -> None:
    call = Call(tmp_path, number, {"pack --unpack": "error"})
    assert (call.status, call.lines[-1]) == (1, "give back, mend: unpack")
    assert call.row("unpack").endswith("OSError: a disk error")
    assert [one.split()[0] for one in call.calls] == ["pack"]


def test_what_memcheck_finds_counts_and_its_absence_does_not(tmp_path: Path) -> None:
    Call(tmp_path, "1", {})
    without = Call(tmp_path, "2", {})
    assert "compute-sanitizer" in without.row("memcheck")
    assert without.status == 0
    sanitizer = tmp_path / "bin" / "compute-sanitizer"
    sanitizer.parent.mkdir()
    sanitizer.write_text("#!/bin/sh\necho Invalid read; exit 9\n")
    sanitizer.chmod(0o755)
    call = Call(tmp_path, "2", {}, PATH=f"{sanitizer.parent}:{os.environ['PATH']}")
    assert (call.status, call.lines[-1]) == (1, "give back, mend: memcheck")
    assert "Invalid read" in (tmp_path / "out" / "log.txt").read_text()


def test_a_table_is_made_of_whatever_is_there(tmp_path: Path) -> None:
    """A line that is cut short, a status that is no signal's, bits found before a crash."""
    (tmp_path / "steps.tsv").write_text("times\t255\t3\nbits: start\t134\t9\nbits: dra\t1")
    (tmp_path / "bits--start.out").write_text('{"equal": 2, "of": 2, "differing": {}}\n')
    found = {step["name"]: step for step in summary.steps(tmp_path)}
    assert set(found) == {"times", "bits: start"}
    assert found["times"]["error"] == "status 255, and no message"
    assert found["bits: start"]["error"] == "it was ended by SIGABRT"
    assert "bits: start" not in summary.to_mend(found)


def test_a_row_that_is_odd_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "steps.tsv").write_bytes(b"times\t0\t3\nbits: start\t0\t9\n\xff\xfe\t1\n")
    (tmp_path / "times.out").write_text('{"products: qkv, none": {"torch": 1.0}}\n')
    (tmp_path / "bits--start.out").write_text('{"of": 2}\n')
    monkeypatch.setattr(sys, "argv", ["summary.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        summary.main()
    lines = capsys.readouterr().out.splitlines()
    assert "| bits: start | cannot be shown: KeyError: 'equal' |" in lines
    assert any(line.startswith("| times | cannot be shown: ValueError") for line in lines)
    assert lines[-1].startswith("give back, mend: probes, bits: start, ")


def test_a_folder_for_results_that_is_full_stops_nothing(tmp_path: Path) -> None:
    out = tmp_path / "full"
    out.mkdir()
    (out / "table.txt").symlink_to("/dev/full")
    call = Call(tmp_path, "1", {}, OUT=str(out))
    assert (call.status, call.lines[-1]) == (0, "all bits equal: call 2")
    assert f"note: {out} has no copy of the results" in call.errors


@pytest.mark.parametrize("number", ["", "3", "plan"])
def test_another_call_is_refused(tmp_path: Path, number: str) -> None:
    call = Call(tmp_path, number, {})
    assert call.status == 2
    assert call.errors.startswith("error: name the call: benchmarks/gpu/run.sh 1, or 2")


def test_times_are_told_as_ratios() -> None:
    """2 is twice as long as PyTorch's."""
    times: dict[str, dict[str, Any]] = {
        f"products: {name}, 8": {"portable": 3.0, "torch": 2.0} for name in summary.MATRICES
    }
    times |= {f"products: {name}, 1": {"portable": 3.0, "torch": "refused"} for name in ("o",)}
    times["attention: prompt, 2048"] = {"portable": 9.0, "cudnn": 3.0, "flash": 4.5}
    times["attention: decode, 8 x 2048"] = {"failure": "RuntimeError: no kernel"}
    assert list(summary.ratios(times)) == [
        ("a layer's products / cuBLAS, rows: 8", "1.50 (12 us)"),
        ("attention: prompt, 2048", "3.00 / cudnn, 2.00 / flash (9 us)"),
        ("attention: decode, 8 x 2048", "RuntimeError: no kernel"),
    ]
    found: dict[str, dict[str, Any]] = {
        "engine: plain": {"values": {"1": 100.0, "start": 30.0}},
        "engine: deterministic": {"values": {"1": 80.0, "start": 40.0}},
    }
    assert list(summary.engine_ratios(found)) == [
        ("engine: plain, 1", "100.0 tokens/s (1.00 x as long as plain)"),
        ("engine: deterministic, 1", "80.0 tokens/s (1.25 x as long as plain)"),
    ]
