"""The page of flags has the table of settings that cost bits as the engine refuses them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools import inexact_settings
from vllm.hf_layers.inexact_settings import SETTINGS

pytestmark = pytest.mark.fast

ANEW = "run python -m tools.inexact_settings --write"


def test_the_page_is_current() -> None:
    page = inexact_settings.PAGE.read_text()
    assert inexact_settings.with_table(page) == page, ANEW


def test_a_setting_that_changes_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    page = inexact_settings.PAGE.read_text()
    first, *others = SETTINGS
    changed = replace(first, reason="because of {0.ranks!r} ranks")
    monkeypatch.setattr(inexact_settings, "SETTINGS", (changed, *others))
    other = inexact_settings.with_table(page)
    assert "| because of RANKS ranks |" in other
    assert page.replace(first.reason, "because of RANKS ranks") == other


def test_a_page_without_a_place_for_it() -> None:
    with pytest.raises(ValueError, match="has no place for the table"):
        inexact_settings.with_table(inexact_settings.BEGIN)
