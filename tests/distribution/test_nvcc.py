"""The CUDA compiler: which one is taken, and that NVIDIA's packages for pip are enough."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from distribution import kernels
from distribution import nvcc as module
from distribution.build_backend import get_requires_for_build_wheel
from distribution.errors import DistributionError
from distribution.kernels import build_library
from distribution.nvcc import PACKAGES, linker_environment, nvcc
from tests.distribution.fake_repository import write_program
from tests.engines import ROOT
from tests.sizes import size

RELEASE_13 = "echo 'Cuda compilation tools, release 13.0, V13.0.88'"
RELEASE_12 = "echo 'Cuda compilation tools, release 12.9, V12.9.13'"


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No nvcc anywhere; returns the one folder of PATH."""
    sysconfig.get_config_vars()  # read once in a process, from a module of sys.path
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(module, "USUAL_NVCC", str(tmp_path / "usual" / "nvcc"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    return tmp_path / "bin"


def test_the_nearest_compiler_is_taken(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nvcc() is None
    of_pip = write_program(tmp_path / "site/nvidia/cu13/bin", "nvcc", RELEASE_13)
    assert nvcc() == of_pip
    usual = write_program(tmp_path / "usual", "nvcc", RELEASE_13)
    assert nvcc() == usual
    on_path = write_program(bare_machine, "nvcc", RELEASE_13)
    assert nvcc() == on_path
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert nvcc() == on_path
    at_home = write_program(tmp_path / "home/bin", "nvcc", RELEASE_13)
    assert nvcc() == at_home


def test_a_compiler_of_another_cuda_is_passed_over(bare_machine: Path, tmp_path: Path) -> None:
    """Its runtime is not the one that torch has loaded."""
    write_program(bare_machine, "nvcc", RELEASE_12)
    assert nvcc() is None
    usual = write_program(tmp_path / "usual", "nvcc", RELEASE_13)
    assert nvcc() == usual


@pytest.mark.parametrize("script", [None, RELEASE_12, RELEASE_13])
def test_pip_installs_a_compiler_where_there_is_none(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    write_program(bare_machine, "c++")
    if script:
        write_program(bare_machine, "nvcc", script)
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    assert not set(get_requires_for_build_wheel()) & set(PACKAGES)
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cuda")
    installed = set(get_requires_for_build_wheel()) & set(PACKAGES)
    assert installed == (set() if script == RELEASE_13 else set(PACKAGES))


def test_without_pip_s_build_environment_a_sentence_says_what_to_install(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(bare_machine, "c++")
    monkeypatch.setattr(kernels, "_configuration", lambda target, torch: [])
    with pytest.raises(DistributionError, match=r"^No nvcc of CUDA 13 .* or run `pip install nv"):
        build_library("cuda", tmp_path)


def test_a_toolkit_needs_no_help_to_link(tmp_path: Path) -> None:
    compiler = write_program(tmp_path / "toolkit/bin", "nvcc", RELEASE_13)
    assert linker_environment(compiler, tmp_path / "links") == {}
    assert not (tmp_path / "links").exists()


@pytest.mark.long
def test_the_kernels_compile_with_nothing_but_pip_s_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the long run twice: pip's build environments, and the compiler in them, move.

    For one architecture, which says as much about the compiler as all of them.
    """
    site = next(path for path in sys.path if Path(path, "nvidia/cu13/bin/nvcc").exists())
    for name in ("CMakeLists.txt", "cmake", "csrc"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("CUDAARCHS", "80-real")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(module, "USUAL_NVCC", str(tmp_path / "none"))
    for name in ("first", "second")[: size(1, 2)]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "nvidia").symlink_to(Path(site, "nvidia"))
        monkeypatch.setattr(sys, "path", [str(tmp_path / name), *sys.path])
        compiler = nvcc()
        assert compiler is not None
        assert compiler.is_relative_to(tmp_path / name)
        library = build_library("cuda", tmp_path).read_bytes()
        assert b"libcudart.so.13" in library
        assert b".nv_fatbin" in library
        assert b"sm_80" in library
        assert b"sm_90" not in library
