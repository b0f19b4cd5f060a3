"""One command makes all digests anew; nothing changes while the specification does not."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines import ROOT
from tools import digests
from vllm.deterministic import NUMERICS_VERSION

pytestmark = pytest.mark.fast

KINDS = ["frequencies", "start-up check"]
VERSIONS = {1: "c5c73bc0854474f2285646de029e99083cc514559cd231ff8c7a1a925849cbdd"}
"""SHA-256 of the results of the operations, for each version of the numerics."""


def test_the_committed_digests_stay() -> None:
    assert digests.changed(KINDS, write=False) == []


def test_other_bits_are_another_version() -> None:
    results = (ROOT / "tests" / "kernels" / "portable_digests.json").read_bytes()
    assert hashlib.sha256(results).hexdigest() == VERSIONS[NUMERICS_VERSION]


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
