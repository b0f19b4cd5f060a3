"""One command makes all digests anew; nothing changes while the specification does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tools import digests

KINDS = ["frequencies", "start-up check"]


def test_the_committed_digests_stay() -> None:
    assert digests.changed(KINDS, write=False) == []


def test_what_changed_is_told_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = digests.KINDS["frequencies"]
    known = json.loads(kind.file.read_text())
    other = tmp_path / "digests.json"
    other.write_text(json.dumps({**known, "default": "0"}))
    monkeypatch.setitem(digests.KINDS, "frequencies", replace(kind, file=other))
    assert digests.changed(["frequencies"], write=False) == ["frequencies"]
    assert json.loads(other.read_text())["default"] == "0"
    assert digests.changed(["frequencies"], write=True) == ["frequencies"]
    assert json.loads(other.read_text()) == known
