"""What tests of the twin share."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm.twin import kept


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of findings for each test; that of upstream, of its models' classes, stays."""
    folder = tmp_path / "definitions"
    monkeypatch.setattr(kept, "_path", lambda name: folder / f"{name}.json")
    return folder
