"""The benchmarks of a GPU machine: what travels there, how it is measured, and what is reported."""

from __future__ import annotations

import json
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
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table

from benchmarks.gpu import build, digests, model_bits, pack, report, stages
from benchmarks.gpu.measurements import Measurement, Outcome, Results, run, run_missing, sentence_of
from distribution.pristine import pristine_text

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
    build.make_environment()
    return build.PYTHON


def test_the_environment_has_the_packages_of_the_python_that_makes_it(environment: Path) -> None:
    asked = "import sys, torch, pip; print(sys.prefix); print(torch.__file__)"
    prefix, torch_file = build.run(str(environment), "-c", asked, capture=True).splitlines()
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

    def watched(*command: str, capture: bool = False) -> str:
        if "pip" not in command:
            return really(*command, capture=capture)
        commands.append(command)
        return ""

    monkeypatch.setattr(build, "run", watched)
    build.install_missing()
    (command,) = commands
    named = [Path(word).name for word in command if word.endswith(".whl")]
    assert named == ["no_such_other-2.0-py3-none-any.whl", "no_such.package-1.0-py3-none-any.whl"]
    assert {"--no-index", "--no-deps"} <= set(command)


def test_a_step_that_fails_ends_the_stage(environment: Path) -> None:
    with pytest.raises(SystemExit, match=r"^error: `.* -c raise SystemExit\(3\) \.\.\.` failed"):
        build.run(str(environment), "-c", "raise SystemExit(3)")


@pytest.mark.parametrize(
    ("capability", "name"), [("9 0", "90a-real"), ("8 0", "80-real"), ("12 0", "120-real")]
)
def test_the_kernels_are_built_for_the_machines_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: str, name: str
) -> None:
    monkeypatch.setattr(build, "run", lambda *_, capture: f"{capability}\n")
    assert build.architecture_of_gpu() == name


def test_without_a_gpu_a_sentence_says_what_to_do(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit, match=r"^error: PyTorch finds no GPU here: name one"):
        build.architecture_of_gpu()
    command = [sys.executable, "-m", "benchmarks.gpu.stages", "bits"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: PyTorch finds no GPU here: run this on")


def test_an_unknown_stage_is_refused() -> None:
    done = subprocess.run(
        [str(ROOT / "benchmarks/gpu/run.sh"), "tests"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "error: tests is no stage: use build, bits or bench.\n"


# --- measurements --------------------------------------------------------------------------------
@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., Measurement]:
    def made(what: str, name: str = "", timeout: float = 60.0) -> Measurement:
        arguments = (what, str(tmp_path / "log"))
        return Measurement(name or what, "tests.benchmarks.measured", arguments, timeout)

    return made


def test_values_are_the_last_line(measure: Callable[..., Measurement]) -> None:
    outcome = run(measure("values"), 60)
    assert (outcome.name, outcome.values, outcome.failure) == ("values", {"all": 12.5}, None)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("fails", "ValueError: this model has no shape."),
        ("silent", "it ended with status 3 and no message"),
    ],
)
def test_a_failure_is_a_sentence(
    measure: Callable[..., Measurement], what: str, sentence: str
) -> None:
    outcome = run(measure(what), 60)
    assert (outcome.values, outcome.failure) == (None, sentence)


def test_what_takes_too_long_is_ended_with_its_processes(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    outcome = run(measure("hangs"), 3)
    assert outcome.failure == "it was ended after 3 seconds"
    assert outcome.seconds < 20
    child = Path("/proc", (tmp_path / "log").read_text(), "stat")
    for _ in range(50):
        if not child.exists() or child.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the process of the measurement goes on")


def test_the_cause_is_the_last_error_that_names_one() -> None:
    text = (
        "INFO starting\n(EngineCore pid=7) ERROR 11-22 [core.py:9] ValueError: no such head\n"
        "Traceback\nRuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert sentence_of(text) == "ValueError: no such head"
    assert sentence_of("first\n\nlast\n\n") == "last"
    assert sentence_of("") == ""


def test_a_stage_goes_on_where_it_ended(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    """What has values is not measured again; what failed is."""
    file, log = tmp_path / "stage.json", tmp_path / "log"
    measurements = [measure("values"), measure("fails")]
    for calls in (["values", "fails"], ["values", "fails", "fails"]):
        results = Results(file, {"gpu": "H"}, tmp_path / "out")
        run_missing(measurements, results, 120)
        assert log.read_text().split() == calls
    kept = json.loads(file.read_text())
    assert kept["machine"] == {"gpu": "H"}
    assert [one["name"] for one in kept["outcomes"]] == ["values", "fails"]
    assert (tmp_path / "out" / "stage.json").read_text() == file.read_text()


def test_nothing_is_started_when_the_time_is_up(
    measure: Callable[..., Measurement], tmp_path: Path
) -> None:
    results = Results(tmp_path / "stage.json", {})
    run_missing([measure("values")], results, 5)
    assert results.of("values") is None
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("measurements", [stages.bits("cuda"), stages.bench("cuda", ["1B"], 8, 1)])
def test_the_measurements_of_a_stage_have_names_of_their_own(measurements: Any) -> None:
    found = list(measurements)
    assert len({one.name for one in found}) == len(found) >= 8
    assert all(find_spec(one.module) for one in found)
    assert all(one.timeout <= 300 for one in found)


# --- tables --------------------------------------------------------------------------------------
def rows_of(table: Table) -> list[list[str]]:
    console = Console(width=400)
    columns = [[console.render_str(str(cell)).plain for cell in column.cells] for column in
               table.columns]  # fmt: skip
    return [list(row) for row in zip(*columns, strict=True)]


OUTCOMES = {
    "operations": Outcome(
        "operations", {"equal": 5, "of": 9, "differing": ["a", "b", "c", "d"]}, None, 1.0
    ),
    "self-check": Outcome("self-check", None, "RuntimeError: no GPU", 1.0),
    "products, 1B": Outcome("", {"qkv, 1": {"portable": 3.0, "torch": 2.0}}, None, 1.0),
    "model, 1B": Outcome("", {"gigabytes": 2.5}, None, 7.5),
    "engine, 1B, plain": Outcome("", {"all": 2000.0, "alone": 100.0, "start": 31.0}, None, 1.0),
    "engine, 1B, exact": Outcome("", {"all": 500.0, "alone": 50.0, "start": 9.0}, None, 1.0),
    "server, 1B, plain": Outcome("", None, "it was ended after 300 seconds", 300.0),
    "server, 1B, exact": Outcome("", {"all": 400.0, "alone": 40.0, "start": 9.0}, None, 1.0),
}
NOT_RUN = "not run: the time was up; call the stage again"


def test_the_table_of_bits_says_what_differs_and_what_was_not_run() -> None:
    names = ["operations", "self-check", "engine, float16"]
    (table,) = report.bits_table(names, OUTCOMES.get)
    assert rows_of(table) == [
        ["operations", "5", "9", "a; b; c and 1 more"],
        ["self-check", "-", "-", "RuntimeError: no GPU"],
        ["engine, float16", "-", "-", NOT_RUN],
    ]


def test_the_tables_of_speed_compare_with_torch_and_with_the_plain_engine() -> None:
    names = [*list(OUTCOMES)[2:], "products, 8B", "server, 1B, hf_compat"]
    kernels, answers = report.bench_tables(names, OUTCOMES.get)
    assert rows_of(kernels) == [
        ["products, 1B", "qkv, 1", "3.0", "2.0", "1.50"],
        ["products, 8B", NOT_RUN, "-", "-", "-"],
    ]
    assert rows_of(answers) == [
        ["model, 1B", "-", "-", "-", "-", "7.5", ""],
        ["engine, 1B, plain", "2,000", "1.00", "100", "1.00", "31.0", ""],
        ["engine, 1B, exact", "500", "0.25", "50", "0.50", "9.0", ""],
        ["server, 1B, plain", "-", "-", "-", "-", "-", "it was ended after 300 seconds"],
        ["server, 1B, exact", "400", "-", "40", "-", "9.0", ""],
        ["server, 1B, hf_compat", "-", "-", "-", "-", "-", NOT_RUN],
    ]


# --- bits ----------------------------------------------------------------------------------------
def test_every_operation_of_the_start_of_an_engine_has_its_bits_here() -> None:
    found = digests.self_check("cpu")
    assert found["equal"] == found["of"] >= 6
    assert found["differing"] == []


def test_other_and_missing_digests_are_named() -> None:
    found = digests.compared({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "3"})
    assert found == {"equal": 1, "of": 3, "differing": ["b", "c"]}


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
