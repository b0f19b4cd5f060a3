"""The reports to upstream: their examples print what they say, there and here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import blocks_of
from tests.engines import MODEL, ROOT
from tests.upstream.trees import run_probe

REPORTS = sorted((ROOT / "docs/develop/upstream-reports").glob("[!R]*.md"))
SAID = re.compile(r"^It prints `([^`]+)`.* It should print `([^`]+)`", re.MULTILINE | re.DOTALL)
ON_DISK = {'"facebook/opt-125m"': repr(str(MODEL))}


def _cases() -> list[Any]:
    """Those that start an engine are of the long run: `test_repaired_bugs` looks at the same."""
    long = [pytest.mark.long]
    return [
        pytest.param(page, id=page.stem, marks=long if "LLM(" in page.read_text() else [])
        for page in REPORTS
    ]


@pytest.mark.parametrize("page", _cases())
def test_an_example_prints_what_its_page_says(page: Path) -> None:
    (block,) = blocks_of(page)
    code = block.code
    for name, path in ON_DISK.items():
        code = code.replace(name, path)
    found = SAID.search(page.read_text())
    assert found is not None
    for upstream, expected in zip((True, False), found.groups(), strict=True):
        assert run_probe("example", upstream=upstream, arguments={"code": code}) == expected


def test_each_report_has_its_patch_and_its_row() -> None:
    listed = (ROOT / "docs/develop/upstream-reports/README.md").read_text()
    assert REPORTS
    for page in REPORTS:
        patch = f"patches/upstream-fixes/{page.stem}.patch"
        assert (ROOT / patch).exists()
        assert f"({page.name}) | `{patch}` |" in listed
