"""Repairs of upstream that are no patches: each says why, and when it can go."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from distribution.series import FIELDS
from tests.engines import ROOT

pytestmark = pytest.mark.fast

PAGE = ROOT / "docs" / "develop" / "repairs.md"
REQUIRED = [field for field in FIELDS if field != "How"]  # the module is how


def fields_of(path: Path) -> dict[str, str]:
    """The fields of a module's docstring, as a patch's header has them."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    found = re.findall(rf"^({'|'.join(FIELDS)}): (.+(?:\n  .+)*)", text, re.MULTILINE)
    return {name: " ".join(value.split()) for name, value in found}


REPAIRS = {
    path.relative_to(ROOT).as_posix(): fields
    for path in sorted((ROOT / "vllm").rglob("*.py"))
    if (fields := fields_of(path))
}


def test_each_repair_has_all_fields() -> None:
    assert len(REPAIRS) > 20
    assert not {path: list(fields) for path, fields in REPAIRS.items() if [*fields] != REQUIRED}


def test_the_page_lists_all_repairs() -> None:
    rows = [f"| `{path}` | {fields['Exit condition']} |" for path, fields in REPAIRS.items()]
    found = [line for line in PAGE.read_text().splitlines() if line.startswith("| `vllm/")]
    assert found == rows, "docs/develop/repairs.md should have these rows:\n" + "\n".join(rows)
