"""The order of test files is that of files that are there."""

from __future__ import annotations

import pytest

from tests.durations import KNOWN, read_durations
from tests.engines import ROOT

pytestmark = pytest.mark.fast


def test_every_file_with_a_known_duration_exists_and_the_longest_are_first() -> None:
    known = read_durations(KNOWN)
    assert [name for name in known if not (ROOT / name).exists()] == []
    assert [*known.values()] == sorted(known.values(), reverse=True)
    assert len(known) > 50
