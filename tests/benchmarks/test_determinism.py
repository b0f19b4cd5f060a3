"""The committed page of what changes bits is the one that its numbers give, and shows no change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.determinism import (
    CIRCUMSTANCES,
    COMMITTED,
    Row,
    as_markdown,
    in_order,
    rows_of_others,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def rows() -> list[Row]:
    return [Row(**row) for row in json.loads((DOCS / "determinism.json").read_text())["rows"]]


def test_the_page_is_that_of_the_numbers(rows: list[Row]) -> None:
    about = json.loads((DOCS / "determinism.json").read_text())["machine"]
    assert (DOCS / "determinism.md").read_text() == as_markdown(rows, about)


def test_deterministic_mode_keeps_all_bits(rows: list[Row]) -> None:
    assert {row.circumstance for row in rows} == {*CIRCUMSTANCES, COMMITTED}
    for row in rows:
        assert row.equal["deterministic"] == row.prompts, row
        assert row.logits >= row.prompts * 1000


def test_some_circumstances_can_be_measured_again(tmp_path: Path, rows: list[Row]) -> None:
    written = tmp_path / "determinism.json"
    written.write_text(json.dumps({"rows": [vars(row) for row in rows]}))
    new = [replace(row, logits=7) for row in rows[3:5]]
    assert in_order([*rows_of_others(written, new), *new]) == [*rows[:3], *new, *rows[5:]]


def test_rows_of_other_models_stay(tmp_path: Path, rows: list[Row]) -> None:
    written = tmp_path / "determinism.json"
    assert rows_of_others(written, rows) == []
    others = [replace(row, model="another") for row in rows[:2]]
    written.write_text(json.dumps({"rows": [vars(row) for row in [*rows[:2], *others]]}))
    assert rows_of_others(written, rows) == others
