"""Installations by pip into fresh environments, on a machine whose pip knows nothing but one index.

See test_torch_source.py for the two indexes. The package is small; pip, the build backend, CMake
and the compiler are real.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from distribution.torch_source import load_source
from tests.distribution.fake_repository import (
    TORCH_INDEX,
    write_files,
)
from tests.distribution.newcomer import Newcomer
from tests.distribution.package_index import Index, add_torch

pytestmark = pytest.mark.long

TORCH = "2.0"
CPU_BUILD = f"{TORCH}+cpu"


def test_pip_installs_the_build_for_cpus_and_keeps_it(
    newcomer: Newcomer, small_repository: Path, pypi: Index, pytorch: Index
) -> None:
    add_torch(pypi.folder, TORCH)
    add_torch(pytorch.folder, CPU_BUILD)
    done = newcomer.pip("install", "--editable", str(small_repository))
    assert done.returncode == 0, done.stdout + done.stderr
    assert newcomer.version("torch") == CPU_BUILD
    assert newcomer.version("vllm") == "1.2.0+cpu.hf1"
    # What a later pip reads has no address that it would have to reach.
    assert newcomer.requirements() == [f"torch=={TORCH}"]
    unpacked = small_repository / "build/cpu/torch==2.0/torch/include/torch.h"
    assert unpacked.exists()

    pytorch.close()
    (pypi.folder / f"torch-{TORCH}-py3-none-any.whl").unlink()
    again = newcomer.pip("install", str(small_repository))
    assert again.returncode == 0, again.stdout + again.stderr
    assert newcomer.version("torch") == CPU_BUILD
    assert load_source(small_repository / "build/cpu/torch.json") is None


def test_pypis_build_serves_and_stays_a_build_for_cpus(
    newcomer: Newcomer,
    small_repository: Path,
    pypi: Index,
    pytorch: Index,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second installation finds a torch that could be CUDA's, and is for CPUs all the same."""
    monkeypatch.delenv("VLLM_TARGET_DEVICE")
    pytorch.behaviour = "absent"
    add_torch(pypi.folder, TORCH)
    for expected_notes in (1, 0):
        done = newcomer.pip("install", "--editable", str(small_repository))
        assert done.returncode == 0, done.stdout + done.stderr
        assert newcomer.version("torch") == TORCH
        assert newcomer.version("vllm") == "1.2.0+cpu.hf1"
        # It can be seen, though pip hides what its hooks print.
        notes = [line for line in done.stderr.splitlines() if line.startswith("vllm: note: ")]
        assert len(notes) == expected_notes


def test_pip_shows_the_sentence_if_there_is_no_torch(
    newcomer: Newcomer, small_repository: Path, pytorch: Index
) -> None:
    done = newcomer.pip("install", str(small_repository))
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert f"error: No torch {TORCH} was found for this Python, neither by pip (" in said
    assert "Traceback" not in said


def test_the_wheel_takes_the_torch_that_is_there_or_that_pip_finds(
    newcomer: Newcomer, small_repository: Path, pypi: Index, pytorch: Index, tmp_path: Path
) -> None:
    add_torch(pypi.folder, TORCH)
    add_torch(pytorch.folder, CPU_BUILD)
    dist = tmp_path / "dist"
    built = newcomer.pip("wheel", "--no-deps", "--wheel-dir", str(dist), str(small_repository))
    assert built.returncode == 0, built.stdout + built.stderr
    described = subprocess.run(
        [sys.executable, "-m", "distribution.release", str(dist)],
        cwd=small_repository, capture_output=True, text=True,
    )  # fmt: skip
    assert described.returncode == 0, described.stderr
    assert f"pip install torch=={TORCH} --index-url {TORCH_INDEX}" in described.stdout
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=dist, capture_output=True)
    assert checked.returncode == 0

    (wheel,) = dist.glob("*.whl")
    first = ("torch==2.0", "--index-url", pytorch.url)
    for before, version in (((), TORCH), (first, CPU_BUILD)):
        fresh = Newcomer(tmp_path / version)
        for arguments in filter(None, (before, (str(wheel),))):
            done = fresh.pip("install", *arguments)
            assert done.returncode == 0, done.stdout + done.stderr
        assert fresh.version("torch") == version
        assert fresh.version("vllm") == "1.2.0+cpu.hf1"
        assert fresh.requirements() == [f"torch=={TORCH}"]


def test_a_wheel_replaces_the_one_before_it_completely(
    newcomer: Newcomer, small_repository: Path, pypi: Index, tmp_path: Path
) -> None:
    add_torch(pypi.folder, CPU_BUILD)
    settings = (small_repository / "upstream.toml").read_text()
    wheels = []
    for fork in (1, 2):
        (small_repository / "upstream.toml").write_text(
            settings.replace("fork = 1", f"fork = {fork}")
        )
        built = newcomer.pip("wheel", "--no-deps", "-w", str(tmp_path), str(small_repository))
        assert built.returncode == 0, built.stdout + built.stderr
        wheels.append(next(tmp_path.glob(f"vllm-1.2.0+cpu.hf{fork}-*.whl")))
        (small_repository / "vllm/own/added.py").unlink(missing_ok=True)
        write_files(small_repository, {"vllm/own/newer.py": "own = 6\n"})
    for wheel, added in zip(wheels, ("added.py", "newer.py"), strict=True):
        done = newcomer.pip("install", "--no-compile", str(wheel))
        assert done.returncode == 0, done.stdout + done.stderr
        package = Path(newcomer.says("import sysconfig; print(sysconfig.get_path('purelib'))"))
        names = {path.name for path in (package / "vllm" / "own").iterdir()}
        assert names - {"__pycache__"} == {added}
    assert newcomer.version("vllm") == "1.2.0+cpu.hf2"
