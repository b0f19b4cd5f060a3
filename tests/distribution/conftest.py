"""What the tests of the distribution share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribution.fake_repository import make_repository


@pytest.fixture(autouse=True)
def no_choices_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that steer an installation are each test's to set."""
    for name in ("VLLM_TARGET_DEVICE", "VLLM_KERNELS", "VLLM_UPSTREAM_WHEEL", "CXX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Root of a small repository with two patches and an overlay."""
    return make_repository(tmp_path / "repository")
