"""What the tests of the distribution share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distribution.fake_repository import make_repository
from tests.distribution.newcomer import BUILD_REQUIREMENTS, Newcomer, make_small_repository
from tests.distribution.package_index import Index, add_package, serving


@pytest.fixture(autouse=True)
def no_choices_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that steer an installation are each test's to set."""
    for name in ("VLLM_TARGET_DEVICE", "VLLM_KERNELS", "VLLM_UPSTREAM_WHEEL", "CXX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Root of a small repository with two patches and an overlay."""
    return make_repository(tmp_path / "repository")


@pytest.fixture
def pypi(tmp_path: Path) -> Iterator[Index]:
    with serving(tmp_path / "pypi") as index:
        yield index


@pytest.fixture
def pytorch(tmp_path: Path) -> Iterator[Index]:
    with serving(tmp_path / "pytorch") as index:
        yield index


@pytest.fixture
def plain_machine(monkeypatch: pytest.MonkeyPatch, pypi: Index, pytorch: Index) -> None:
    """pip as it is when nobody has configured it, but for the addresses of the two indexes."""
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", pypi.url)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("VLLM_PYTORCH_INDEX_URL", pytorch.url)
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")


@pytest.fixture(scope="session")
def build_requirements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what pip needs to build, as PyPI has it."""
    folder = tmp_path_factory.mktemp("build-requirements")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*pip, *BUILD_REQUIREMENTS], check=True)
    return folder


@pytest.fixture
def small_repository(tmp_path: Path) -> Path:
    """This project's installation, of a small package with one kernel."""
    return make_small_repository(tmp_path / "small")


@pytest.fixture
def newcomer(
    plain_machine: None, tmp_path: Path, pypi: Index, build_requirements: Path
) -> Newcomer:
    for wheel in build_requirements.iterdir():
        (pypi.folder / wheel.name).symlink_to(wheel)
    add_package(pypi.folder, "rich", "1.0")
    return Newcomer(tmp_path / "newcomer")
