"""The environment on a GPU machine, and what it lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import (
    build,
)
from tests.engines import ROOT


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
