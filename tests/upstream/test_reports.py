"""The reports to upstream: their examples print what they say, there and here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import blocks_of
from tests.engines import MODEL, ROOT
from tests.structure.test_repairs import REPAIRS
from tests.upstream.trees import run_probe

REPORTS = sorted((ROOT / "docs/develop/upstream-reports").glob("[!R]*.md"))
README = (ROOT / "docs/develop/upstream-reports/README.md").read_text()
SAID = re.compile(r"^It prints `([^`]+)`.* It should print `([^`]+)`", re.MULTILINE | re.DOTALL)
FLAG = re.compile(r"`(VLLM_\w+)=1`")
"""Of a page whose example this project answers as it should with a flag alone."""

ROW = re.compile(r"^\| \[(.+)\]\((.+)\) \| `(.+)` \|$", re.MULTILINE)
ON_DISK = {'"facebook/opt-125m"': repr(str(MODEL))}


def _cases() -> list[Any]:
    """Those that start an engine are of the long run."""
    long = [pytest.mark.long]
    return [
        pytest.param(page, id=page.stem, marks=long if "LLM(" in page.read_text() else [])
        for page in REPORTS
    ]


@pytest.mark.some(2)
@pytest.mark.parametrize("page", _cases())
def test_an_example_prints_what_its_page_says(page: Path) -> None:
    (block,) = blocks_of(page)
    code = block.code
    for name, path in ON_DISK.items():
        code = code.replace(name, path)
    text = page.read_text()
    found = SAID.search(text)
    assert found is not None
    upstreams, expected = found.groups()
    assert run_probe("example", upstream=True, arguments={"code": code}) == upstreams
    flags = dict.fromkeys(FLAG.findall(text), "1")
    assert run_probe("example", upstream=False, arguments={"code": code}, **flags) == expected


def test_each_report_has_its_row_and_what_mends_it() -> None:
    rows = {name: (title, mended_by) for title, name, mended_by in ROW.findall(README)}
    assert list(rows) == [name for _, name, _ in ROW.findall(README)]
    assert rows.keys() == {page.name for page in REPORTS}
    for page in REPORTS:
        title, mended_by = rows[page.name]
        assert page.read_text().startswith(f"# {title}\n")
        patch = f"patches/upstream-fixes/{page.stem}.patch"
        if mended_by in REPAIRS:
            assert f"(upstream-reports/{page.name})" in REPAIRS[mended_by]["Upstream status"]
        else:
            assert mended_by == patch
            assert (ROOT / patch).exists()


def test_each_repair_has_a_report_or_is_said_to_have_none() -> None:
    reported = {mended_by for _, _, mended_by in ROW.findall(README)}
    without = re.findall(r"`(vllm/\S+\.py)`", ROW.sub("", README))
    assert sorted([*without, *(reported & REPAIRS.keys())]) == sorted(REPAIRS)
