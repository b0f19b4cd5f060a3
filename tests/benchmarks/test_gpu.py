"""The benchmarks of a GPU machine: what travels there, how it is measured, and what is reported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from email import message_from_bytes
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table

from benchmarks.gpu import (
    build,
    differences,
    digests,
    model_bits,
    pack,
    real_shapes,
    report,
    sanitizer,
    schedule,
    table,
)
from benchmarks.gpu.measurements import Log, Measurement, Outcome, run, sentence_of
from benchmarks.gpu.plan import BENCH, BITS, BUILD_SECONDS, Plan
from benchmarks.gpu.results import LOG_BYTES, Results
from distribution.pristine import pristine_text
from tests.emulated_gpu.device import GPU, emulated_gpu
from vllm.fork_ops.portable_product import portable_product

ROOT = Path(__file__).resolve().parents[2]


# --- what travels --------------------------------------------------------------------------------
def wheels() -> dict[str, str]:
    """Return the versions of wheels.txt."""
    lines = [line for line in pack.WHEELS.read_text().splitlines() if not line.startswith("#")]
    pairs = [line.split("==") for line in lines]
    assert all(len(pair) == 2 for pair in pairs)
    return {build.normalised(name): version for name, version in pairs}


def test_the_versions_of_the_wheels_are_those_that_upstream_takes() -> None:
    metadata = next(pristine_text("cuda").glob("*.dist-info/METADATA"))
    lines = message_from_bytes(metadata.read_bytes()).get_all("Requires-Dist") or []
    checked = 0
    for requirement in map(Requirement, lines):
        version = wheels().get(build.normalised(requirement.name))
        if version is not None and requirement.marker is None:
            assert requirement.specifier.contains(version), requirement
            checked += 1
    assert checked >= 12


def test_upstreams_package_travels_without_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    for name in (
        "vllm/a.py",
        "vllm/_C.abi3.so",
        "vllm/vllm-rs",
        "vllm/b.pyc",
        "x.dist-info/RECORD",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(name)
    monkeypatch.setattr(pack, "pristine_text", lambda target: {"cuda": tree}[target])
    pack.pack_text(tmp_path / "text.tar.xz")
    with tarfile.open(tmp_path / "text.tar.xz") as archive:
        names = [member.name for member in archive if member.isfile()]
    assert sorted(names) == ["vllm/a.py", "x.dist-info/RECORD"]


def test_what_is_too_large_is_refused() -> None:
    pack.check_size(10 << 20, 54 << 20)
    with pytest.raises(ValueError, match=r"^the repository \(10\.0 MiB\) .* more than 64 MiB"):
        pack.check_size(10 << 20, (54 << 20) + 1)


# --- the environment there -----------------------------------------------------------------------
@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment that `build` made with this Python; returns its Python."""
    monkeypatch.setattr(build, "VENV", tmp_path / "venv")
    monkeypatch.setattr(build, "PYTHON", tmp_path / "venv" / "bin" / "python")
    monkeypatch.setattr(build, "PACK", tmp_path / "pack")
    monkeypatch.setattr(build, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(build, "LOG", tmp_path / "results" / "build.log")
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.delenv("OUT", raising=False)
    build.make_environment()
    return build.PYTHON


def test_the_environment_has_the_packages_of_the_python_that_makes_it(environment: Path) -> None:
    asked = "import sys, torch, pip; print(sys.prefix); print(torch.__file__)"
    prefix, torch_file = build.run(str(environment), "-c", asked).splitlines()
    assert Path(prefix) == environment.parents[1]
    assert not Path(torch_file).is_relative_to(prefix)


def test_only_what_is_missing_is_installed(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch-9.9", "Rich-1.0", "no_such.package-1.0", "no_such_other-2.0"):
        path = build.PACK / "wheels" / f"{name}-py3-none-any.whl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    commands: list[tuple[str, ...]] = []
    really = build.run

    def watched(*command: str) -> str:
        if "pip" not in command:
            return really(*command)
        commands.append(command)
        return ""

    monkeypatch.setattr(build, "run", watched)
    build.install_missing()
    (command,) = commands
    named = [Path(word).name for word in command if word.endswith(".whl")]
    assert named == ["no_such_other-2.0-py3-none-any.whl", "no_such.package-1.0-py3-none-any.whl"]
    assert {"--no-index", "--no-deps"} <= set(command)


@pytest.mark.parametrize(
    ("capability", "name"), [("9 0", "90a-real"), ("8 0", "80-real"), ("12 0", "120-real")]
)
def test_the_kernels_are_built_for_the_machines_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: str, name: str
) -> None:
    said = f"a warning of PyTorch\ncapability {capability}\nand 1 2\n"
    monkeypatch.setattr(build, "run", lambda *_: said)
    assert build.architecture_of_gpu() == name


def test_a_driver_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "UserWarning: The NVIDIA driver is too old (found version 12080).\n  x = > 0\ncapability\n"
    )
    monkeypatch.setattr(build, "run", lambda *_: said)
    with pytest.raises(build.BuildError, match=r"finds no GPU here.*says: .*driver is too old"):
        build.architecture_of_gpu()


def test_a_pack_for_another_python_is_refused(environment: Path) -> None:
    build.PACK.mkdir()
    (build.PACK / "python.txt").write_text("3.99\n")
    with pytest.raises(build.BuildError, match=r"pack is for Python 3\.99, and this is 3"):
        build.check_pack()


def test_what_the_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "NEEDED", ("torch", "no_such_module", "neither_this"))
    with pytest.raises(build.BuildError, match=r"has not no_such_module, neither_this, which"):
        build.check_present()


def test_without_a_gpu_a_sentence_says_what_to_do(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(build.BuildError, match=r"^PyTorch finds no GPU here: to build without"):
        build.architecture_of_gpu()
    command = [sys.executable, "-m", "benchmarks.gpu.measure"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: PyTorch finds no GPU here: run this on")


def test_an_unknown_stage_is_refused() -> None:
    done = subprocess.run(
        [str(ROOT / "benchmarks/gpu/run.sh"), "tests"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "error: tests is no stage: use build, bits, bench, all or plan.\n"


# --- the build -----------------------------------------------------------------------------------
FAILS = (
    "import sys; print('line of the compiler', flush=True); "
    "print('error: no such thing', file=sys.stderr); sys.exit(3)"
)


def build_that(
    environment: Path, monkeypatch: pytest.MonkeyPatch, code: str = "print('compiled')"
) -> None:
    """Let the build be one command."""
    build.PACK.mkdir(exist_ok=True)
    (build.PACK / "python.txt").write_text(".".join(map(str, sys.version_info[:2])))
    monkeypatch.setattr(build, "NEEDED", ())
    monkeypatch.setattr(build, "unpack_upstream", lambda: None)
    monkeypatch.setattr(
        build, "install_distribution", lambda _: build.run(sys.executable, "-c", code)
    )
    monkeypatch.setattr(sys, "argv", ["build.py", "--architecture", "90a-real"])


def test_a_build_that_fails_leaves_a_record_and_its_whole_log(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    build_that(environment, monkeypatch, FAILS)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    with pytest.raises(SystemExit, match=r"^error: `.*failed with status 3; its last lines"):
        build.main()
    record = json.loads((tmp_path / "out" / "build.json").read_text())
    assert "failed with status 3" in record["failure"]
    assert record["architecture"] == "90a-real"
    assert "distribution and kernels for 90a-real" in record["seconds"]
    log = (tmp_path / "out" / "build.log").read_text()
    for text in (log, capsys.readouterr().out):
        assert "line of the compiler\nerror: no such thing\n" in text


def test_what_was_built_is_not_built_again(
    environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless it failed, or something has changed."""
    build_that(environment, monkeypatch, FAILS)
    with pytest.raises(SystemExit):
        build.main()
    monkeypatch.setattr(build, "run", lambda *_: "")
    build.main()
    assert "  import\n" in capsys.readouterr().out
    build.main()
    assert capsys.readouterr().out == "build: nothing has changed since the last one.\n"
    monkeypatch.setattr(sys, "argv", ["build.py", "--architecture", "80-real"])
    build.main()
    assert "kernels for 80-real" in capsys.readouterr().out
    monkeypatch.setattr(build, "digest_of_sources", lambda: "another")
    build.main()
    assert "kernels for 80-real" in capsys.readouterr().out
    for broken in ("", "{}", "[]", "null"):
        (build.RESULTS / "build.json").write_text(broken)
        build.main()
        assert "kernels for 80-real" in capsys.readouterr().out


def test_a_build_that_is_interrupted_is_not_taken_for_one(
    environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build_that(environment, monkeypatch)
    monkeypatch.setattr(build, "run", lambda *_: "")
    build.main()
    really = build.make_environment

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["build.py", "--architecture", "80-real"])
    monkeypatch.setattr(build, "make_environment", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build.main()
    record = json.loads((build.RESULTS / "build.json").read_text())
    assert record["failure"] == "it was interrupted"
    monkeypatch.setattr(build, "make_environment", really)
    capsys.readouterr()
    build.main()
    assert "kernels for 80-real" in capsys.readouterr().out


def test_two_calls_at_once_are_refused(environment: Path) -> None:
    refused = pytest.raises(SystemExit, match="another call builds or measures here")
    with build.alone(), refused, build.alone():
        pass


def test_a_build_whose_copies_cannot_be_written_goes_on(
    environment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    build_that(environment, monkeypatch)
    monkeypatch.setattr(build, "run", lambda *_: "")
    monkeypatch.setenv("OUT", str(full_folder(tmp_path, "build.json", "build.log")))
    build.main()
    assert "has no copy of the results: [Errno 28] No space left" in capsys.readouterr().out
    assert json.loads((build.RESULTS / "build.json").read_text())["failure"] is None


def full_folder(tmp_path: Path, *names: str) -> Path:
    """Return a folder in which there is no room for files of these names."""
    folder = tmp_path / "full"
    folder.mkdir()
    for name in names:
        (folder / name).symlink_to("/dev/full")
    return folder


# --- measurements --------------------------------------------------------------------------------
@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., Measurement]:
    def made(way: str, name: str = "", limit: float = 60.0, **more: Any) -> Measurement:
        arguments = (way, str(tmp_path / "ran"))
        return Measurement(name or way, "tests.benchmarks.measured", arguments, 1.0, limit, **more)

    return made


def outcome_of(measurement: Measurement, folder: Path) -> tuple[Outcome, str, str]:
    """Run a measurement; return its outcome, and all that it wrote."""
    log = Log.of(measurement.name, folder)
    outcome = run(measurement, log)
    return outcome, log.out.read_text(), log.err.read_text()


@pytest.mark.parametrize("way", ["values", "chatters", "floods"])
def test_values_are_the_last_object(
    measure: Callable[..., Measurement], way: str, tmp_path: Path
) -> None:
    outcome, out, _ = outcome_of(measure(way), tmp_path)
    assert (outcome.name, outcome.values, outcome.failure) == (way, {"all": 12.5}, None)
    assert len(out.splitlines()) == {"values": 2, "chatters": 4, "floods": 200_001}[way]


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("fails", "ValueError: this model has no shape."),
        ("silent", "it ended with status 3 and no message"),
        ("says_nothing", "it ended well, but printed no values"),
    ],
)
def test_a_failure_is_a_sentence(
    measure: Callable[..., Measurement], way: str, sentence: str, tmp_path: Path
) -> None:
    outcome, _, err = outcome_of(measure(way), tmp_path)
    assert (outcome.values, outcome.failure) == (None, sentence)
    assert ("Traceback" in err) == (way == "fails")


def test_what_crashed_has_said_what_it_had_measured(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    outcome, _, err = outcome_of(measure("crashes"), tmp_path)
    assert outcome.values == {"all": 12.5}
    assert outcome.failure == "it was ended by SIGSEGV; about to go"
    assert err == "about to go\n"


def test_what_takes_too_long_keeps_what_it_has_found(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    outcome, _, _ = outcome_of(measure("goes_on", limit=6), tmp_path)
    assert outcome.failure == "it was ended after 6 seconds"
    assert outcome.values is not None
    assert outcome.values["all"] >= 2


def test_what_takes_too_long_is_ended_with_its_processes(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    outcome, _, _ = outcome_of(measure("hangs", limit=3), tmp_path)
    assert (outcome.values, outcome.failure) == (None, "it was ended after 3 seconds")
    assert outcome.seconds < 20
    child = Path("/proc", (tmp_path / "ran").read_text(), "stat")
    wait_for(lambda: not child.exists() or child.read_text().split()[2] == "Z")


def test_the_cause_is_the_last_error_that_names_one() -> None:
    text = (
        "INFO starting\n(EngineCore pid=7) ERROR 11-22 [core.py:9] ValueError: no such head\n"
        "Traceback\nRuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert sentence_of(text) == "ValueError: no such head"
    late = "torch.OutOfMemoryError: no room\nImportError: sys.meta_path is None, Python is likely\n"
    assert sentence_of(late) == "OutOfMemoryError: no room"
    assert sentence_of("first\n\nlast\n\n") == "last"
    assert sentence_of("") == ""


# --- what is kept --------------------------------------------------------------------------------
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


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("it took more than 20 seconds")


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


# --- what comes next -----------------------------------------------------------------------------
def find_in(known: dict[str, Outcome]) -> schedule.Find:
    return lambda name: known.get(name)


def of(name: str, limit: float, needs: str | None = None) -> Measurement:
    return Measurement(name, "a.module", (), limit / 2, limit, needs)


def done(
    name: str, values: dict[str, Any] | None = None, failure: str | None = None, key: str = ""
) -> Outcome:
    return Outcome(name, values, failure, 1.0, "2026-11-23T10:00:00+00:00", key)


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


# --- tables --------------------------------------------------------------------------------------
def rows_of(table: Table) -> list[list[str]]:
    console = Console(width=400)
    columns = [[console.render_str(str(cell)).plain for cell in column.cells] for column in
               table.columns]  # fmt: skip
    return [list(row) for row in zip(*columns, strict=True)]


PLAIN = {"1": 100.0, "8": 700.0, "64": 4000.0, "prompt": 50000.0, "start": 31.0}
OUTCOMES = {
    one.name: one
    for one in (
        done("operations", {"equal": 5, "of": 9, "differing": ["[a/b]", "b", "c", "d"]}),
        done("self-check", None, "RuntimeError: size [int8], [/root/x.py]"),
        done("memcheck", {"equal": 3, "of": 4, "differing": ["x"]}, "it was ended after 9 seconds"),
        done("products, 1B", {"qkv, 1": {"portable": 3.0, "torch": 2.0},
                              "qkv, 8": {"failure": "RuntimeError: no"}}, "ended"),
        done("model, 1B", {"gigabytes": 2.5}),
        done("engine, 1B, plain", PLAIN),
        done("engine, 1B, exact", {"1": 50.0, "8": 70.0, "start": 9.0}, "it was ended after 9 s"),
        done("server, 1B, plain", None, "it was ended after 300 seconds"),
        done("server, 1B, exact", PLAIN),
    )
}  # fmt: skip
NOT_RUN = "not run: call again, with more MINUTES if it does not fit"


def test_the_tables_say_what_differs_and_what_was_not_run() -> None:
    names = [*OUTCOMES, "logits: engine, float16", "products, 8B", "server, 1B, hf_compat"]
    bits, kernels, answers = report.tables(names, OUTCOMES.get)
    assert rows_of(bits) == [
        ["operations", "5", "9", "[a/b]; b; c and 1 more", "1.0"],
        ["self-check", "-", "-", "RuntimeError: size [int8], [/root/x.py]", "-"],
        ["memcheck", "3", "4", "x; it was ended after 9 seconds", "1.0"],
        ["logits: engine, float16", "-", "-", NOT_RUN, "-"],
    ]
    assert rows_of(kernels) == [
        ["products, 1B", "qkv, 1", "3.0", "2.0", "1.50"],
        ["products, 1B", "qkv, 8", "-", "-", "RuntimeError: no"],
        ["products, 1B", "ended", "-", "-", "-"],
        ["products, 8B", NOT_RUN, "-", "-", "-"],
    ]
    assert rows_of(answers) == [
        ["model, 1B", *["-"] * 4, "1.0", ""],
        ["engine, 1B, plain", "100 (1.00)", "700 (1.00)", "4,000 (1.00)", "50,000 (1.00)", "31.0",
         ""],
        ["engine, 1B, exact", "50 (0.50)", "70 (0.10)", "-", "-", "9.0", "it was ended after 9 s"],
        ["server, 1B, plain", *["-"] * 5, "it was ended after 300 seconds"],
        ["server, 1B, exact", "100", "700", "4,000", "50,000", "31.0", ""],
        ["server, 1B, hf_compat", *["-"] * 5, NOT_RUN],
    ]  # fmt: skip


def test_the_page_has_the_table_of_what_was_measured() -> None:
    """As `python -m benchmarks.gpu.table` writes it."""
    text = table.PAGE.read_text()
    assert table.page(text) == text


def test_the_table_has_the_date_and_the_gpu_of_each_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table, "MEASURED", tmp_path)
    empty = [line.split(" | ")[-1] for line in table.table().splitlines()[2:]]
    assert set(empty) == {" |"}
    layer = ("qkv", "o", "gate_up", "down")
    times = {f"{matrix}, 1": {"portable": 3.0, "torch": 2.0} for matrix in layer}
    Results({"device": "cpu"}, tmp_path).add(done("self-check", {"equal": 1, "of": 1}))
    results = Results({"device": "NVIDIA H100|80"}, tmp_path)
    for one in (
        done("self-check", {"equal": 7, "of": 9, "differing": ["a", "b"]}),
        done("real shapes, 8B", {"equal": 10, "of": 10}, "it was ended after 150 seconds"),
        done("memcheck", {"equal": 40, "of": 40, "errors": 7}),
        done("racecheck", None, "it was ended by SIGSEGV"),
        done("products, 8B", times, "it was ended after 150 seconds"),
        done("engine, 8B, plain", {"1": 100.0, "8": 400.0}),
        done("engine, 8B, deterministic", {"1": 80.0}),
    ):
        results.add(one)
    lines = table.table().splitlines()
    assert lines[0].endswith("| measured, NVIDIA H100\\|80 |")
    figures = {line.split(" | ")[0]: line.split(" | ")[-1] for line in lines[2:]}
    assert {what: figure for what, figure in figures.items() if figure != " |"} == {
        "| bits: the start-up check": "7 of 9 (2026-11-23) |",
        "| bits: an 8B Llama's shapes, beside the CPU": (
            "10 of 10 (2026-11-23; a part: it was ended after 150 seconds) |"
        ),
        "| compute-sanitizer memcheck of the check": "40 of 40, 7 errors (2026-11-23) |",
        "| time of a layer's products / cuBLAS, 1 row": "1.50 (2026-11-23; a part: it was ended "
        "after 150 seconds) |",
        "| time of an engine / the plain one, 1 answer at once": "1.25 (2026-11-23) |",
    }


# --- bits ----------------------------------------------------------------------------------------
def test_every_operation_of_the_start_of_an_engine_has_its_bits_here() -> None:
    (*_, found) = digests.self_check("cpu")
    assert found["equal"] == found["of"] >= 6
    assert found["differing"] == []


def test_other_and_missing_digests_are_named() -> None:
    found = digests.compared({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "3"})
    assert found == {"equal": 1, "of": 3, "differing": ["b", "c"]}


def test_what_differs_is_told_by_element() -> None:
    there = torch.arange(12.0).view(3, 4)
    here = there.clone()
    assert differences.difference(here, there) is None
    here[1, 2] = 6.5
    here[2, 0] = torch.nan
    assert differences.difference(here, there) == {
        "differ": 2,
        "of": 12,
        "largest": 0.5,
        "first": [
            {"place": [1, 2], "here": (6.5).hex(), "cpu": (6.0).hex()},
            {"place": [2, 0], "here": "nan", "cpu": (8.0).hex()},
        ],
    }
    zeros = torch.zeros(2), -torch.zeros(2)
    found = differences.difference(*zeros)
    assert found is not None
    assert found["differ"] == 2
    whole = torch.randn(3, 1 << 21)
    found = differences.difference(whole, -whole)
    assert found is not None
    assert found["differ"] == whole.numel()
    assert [one["place"] for one in found["first"]] == [[0, i] for i in range(5)]
    found = differences.difference(here, there.bfloat16())
    assert found is not None
    assert found["kinds"] == ["torch.float32 [3, 4]", "torch.bfloat16 [3, 4]"]


def test_real_shapes_find_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU both sides are equal; with an operation that is wrong for one number of rows, one
    result of each matrix is not. What fails is noted, and the other parts are compared.
    """
    monkeypatch.setattr(real_shapes, "ROWS", (1, 65, 70))
    monkeypatch.setattr(real_shapes, "ROWS_WITH_DIGITS", (1, 65, 70))
    (*_, last) = real_shapes.compare("tiny", torch.device("cpu"))
    assert last["equal"] == last["of"] >= 40
    really = portable_product

    def wrong(x: torch.Tensor, weight: Any, **more: Any) -> torch.Tensor:
        product = really(x, weight, **more)
        product[-1, -1] += len(x) == 65
        return product

    monkeypatch.setattr(real_shapes, "portable_product", wrong)
    monkeypatch.setattr(real_shapes, "portable_argmax", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(real_shapes.compare("tiny", torch.device("cpu")))

    def refused(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(real_shapes, "portable_argmax", refused)
    *_, rows, vocabulary = real_shapes.compare("tiny", torch.device("cpu"))
    assert rows["differing"] == [
        *("products: qkv, numbers, 65", "products: qkv, norm, 65", "products: o, numbers, 65"),
        *("products: gate_up, numbers, 65", "products: gate_up, norm, 65"),
        *("products: down, numbers, 65", "products: down, gated, 65"),
        "products: gate, numbers, 65",
    ]
    assert vocabulary["differences"]["vocabulary"] == {
        "error": "RuntimeError: an illegal memory access was encountered"
    }


def test_real_shapes_on_an_emulated_gpu(
    monkeypatch: pytest.MonkeyPatch, emulated_library: Path
) -> None:
    """The kernels themselves, on tensors of a GPU."""
    monkeypatch.setattr(real_shapes, "ROWS", (1, 17))
    monkeypatch.setattr(real_shapes, "ROWS_WITH_DIGITS", (1, 17))
    monkeypatch.setattr(real_shapes, "REQUESTS", {"all": [(1100, 1), (40, 40)]})
    with emulated_gpu() as gpu:
        (*_, last) = real_shapes.compare("tiny", GPU)
        assert gpu.calls["portable_digits_product"] == 6
        assert gpu.calls["portable_attention"] == 2
    assert last["differing"] == []
    assert last["equal"] >= 30


def test_what_the_sanitizer_says() -> None:
    values = '{"equal": 7, "of": 7, "differing": []}\n'
    clean = f"{values}========= ERROR SUMMARY: 0 errors\n"
    assert sanitizer.values_of("memcheck", clean)["differing"] == []
    found = sanitizer.values_of(
        "racecheck", f"{values}========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 ...)\n"
    )
    assert (found["errors"], found["differing"]) == (3, ["3 errors of racecheck"])
    for text in (values, "========= ERROR SUMMARY: 0 errors\n"):
        with pytest.raises(RuntimeError, match="memcheck ended without a summary or without"):
            sanitizer.values_of("memcheck", text)


def test_a_machine_without_the_sanitizer_says_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitizer, "PLACES", ())
    with pytest.raises(FileNotFoundError, match="it comes with the CUDA toolkit"):
        sanitizer.sanitizer()
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\nshift 6\n\"$@\"\necho '========= ERROR SUMMARY: 0 errors'\n")
    program.chmod(0o755)
    found = sanitizer.checked("memcheck", "cpu")
    assert found["equal"] == found["of"] >= 6


@pytest.mark.parametrize("dtype", model_bits.DTYPES)
def test_this_cpu_has_the_recorded_logits(dtype: str) -> None:
    """Of the first 64 tokens of two answers; a stage compares all of them."""
    model = model_bits.attached_model(dtype, "cpu")
    expected = model_bits.expected_answers(dtype)
    assert len(expected) == len(model_bits.prompt_ids()) == 8
    for number in (0, 5):
        one = expected[number]
        assert len(one.tokens) == 256
        found = model_bits.read(model, model_bits.prompt_ids()[number], one.tokens[:64])
        assert found == one.digests[:2]
        assert len(set(one.digests)) == 8


def test_the_logits_of_an_engine_are_in_the_order_of_the_vocabulary() -> None:
    """Of each step it gives the chosen token and then the likeliest."""
    flat = SimpleNamespace(
        start_indices=[0, 4],
        end_indices=[4, 8],
        token_ids=[1, 1, 2, 0, 0, 2, 0, 1],
        logprobs=[3.0, 3.0, 2.0, -1.0, 5.0, 7.0, 5.0, 4.0],
    )
    assert model_bits.rows_of(flat).tolist() == [[-1.0, 3.0, 2.0], [5.0, 4.0, 7.0]]


def test_other_tokens_are_other_answers() -> None:
    one = model_bits.Answer(list(range(64)), ["x", "y"])
    other = model_bits.Answer([*range(32), 99, *range(33, 64)], ["x", "y"])
    found = digests.compared(dict(model_bits.named([one])), dict(model_bits.named([other])))
    assert found["differing"] == ["prompt 0, tokens from 32"]
