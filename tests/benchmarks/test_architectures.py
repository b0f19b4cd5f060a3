"""The table of architectures: a part of it is made, and is as the committed one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.architectures.page import PROMISES, Row, as_markdown, row_of
from benchmarks.architectures.sides import MODES, Side

ROOT = Path(__file__).resolve().parent.parent.parent
TYPES = ("gpt2", "afmoe")
SIZE = (6, 6 * 16)
"""Answers of a row, and steps whose logits are compared."""


def committed() -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = json.loads((ROOT / "docs" / "architectures.json").read_text())["rows"]
    return {(row["type"], row["variant"], row["dtype"]): row for row in rows}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a table of few types, which a second run would only read."""
    folder = tmp_path_factory.mktemp("architectures")
    command = [sys.executable, "-m", "benchmarks.architectures", *TYPES, "--dtypes", "bfloat16"]
    command += ["--work", str(folder / "work"), "--output", str(folder / "table")]
    subprocess.run([*command, "--workers", "1"], cwd=ROOT, check=True, capture_output=True)
    return folder


def test_what_is_full_in_the_committed_table_is_full_here(made: Path) -> None:
    rows = json.loads((made / "table.json").read_text())["rows"]
    kept = committed()
    assert {row["type"] for row in rows} == {*TYPES}
    for row in rows:
        before = kept[row["type"], row["variant"], row["dtype"]]
        for mode in PROMISES:
            cell = before["cells"][mode]
            if (cell["answers"], cell["logits"]) == SIZE:
                found = row["cells"][mode]
                assert (found["answers"], found["logits"]) == SIZE, (row["type"], mode)
    assert all(kept["gpt2", "", "bfloat16"]["cells"][mode]["logits"] == 96 for mode in PROMISES)


def test_each_answer_is_kept(made: Path) -> None:
    for name in TYPES:
        kept = {path.name for path in (made / "work" / name).glob("*.json")}
        assert kept == {f"bfloat16-{side}.json" for side in ("hf", "attached", *MODES)}


def sides(**others: Side) -> dict[str, Side]:
    same = Side([[1, 2]], [["a", "b"]])
    return {"hf": same, "attached": same, **dict.fromkeys(MODES, same), **others}


def test_cells() -> None:
    found = sides(
        hf_compat=Side([[1, 3]], [["a", "c"]], ["RMSNorm: another one"]),
        exact=Side(error="no pages"),
        deterministic=Side([[1, 2]], [["a", "x"]]),
        upstream=Side([[1, 2]], [["x", "y"]]),
    )
    page = as_markdown([row_of("ours", "tied", "bfloat16", found)])
    assert "| ours, tied | bfloat16 | 1, 0% | 0, 50% [1] | - [2] | 1, 50% [3] | 1, 100% |" in page
    assert "[1] RMSNorm: another one\n" in page
    assert "[2] no pages\n" in page
    assert "[3] Not explained yet" in page
    assert "| bfloat16 | 1 types, 1 models | 0 types, 0 models | 0 types, 0 models | 0 " in page


def test_float32_promises_answers_alone() -> None:
    row = row_of("ours", "", "float32", sides(hf_compat=Side([[1, 2]], [["x", "y"]])))
    assert row.is_full("hf_compat")
    assert row.is_full("exact")
    assert not row_of("ours", "", "float32", sides(exact=Side([[1, 2]], [["x", "y"]]))).is_full(
        "exact"
    )


def test_a_model_that_transformers_does_not_run() -> None:
    row = row_of("ours", "", "float32", sides(hf=Side(error="IndexError: no")))
    assert row == Row("ours", "", "float32", error="IndexError: no")
    assert "[1] Transformers: IndexError: no" in as_markdown([row])


def test_rows_of_several_machines() -> None:
    rows = [
        Row("ours", "", "float32", error="none", machine="cpu A"),
        Row("ours", "tied", "float32", error="none", machine="cpu A"),
    ]
    assert "\nMeasured with cpu A.\n" in as_markdown(rows)
    assert "\n- cpu A: ours\n- cpu B: yours\n" in as_markdown(
        [*rows, Row("yours", "", "float32", error="none", machine="cpu B")]
    )
