"""What the tests of the benchmarks on a GPU machine share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import (
    build,
    schedule,
)
from benchmarks.gpu.measurements import Measurement, Outcome


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


def full_folder(tmp_path: Path, *names: str) -> Path:
    """Return a folder in which there is no room for files of these names."""
    folder = tmp_path / "full"
    folder.mkdir()
    for name in names:
        (folder / name).symlink_to("/dev/full")
    return folder


@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., Measurement]:
    def made(way: str, name: str = "", limit: float = 60.0, **more: Any) -> Measurement:
        arguments = (way, str(tmp_path / "ran"))
        return Measurement(name or way, "tests.benchmarks.measured", arguments, 1.0, limit, **more)

    return made


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("it took more than 20 seconds")


def find_in(known: dict[str, Outcome]) -> schedule.Find:
    return lambda name: known.get(name)


def done(
    name: str, values: dict[str, Any] | None = None, failure: str | None = None, key: str = ""
) -> Outcome:
    return Outcome(name, values, failure, 1.0, "2026-11-23T10:00:00+00:00", key)
