"""The page of the match table says what was found, and hides nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks.match_causes import UNEXPLAINED
from benchmarks.match_report import KINDS, MODES, MatchRow, as_markdown, compare_sides
from benchmarks.match_table import BUNDLED, _first_error, merge, model_folder
from tests.engines import ROOT
from tools.model_shapes import SHAPES
from vllm.parity.setting import DTYPES

PAGE = ROOT / "docs" / "match-table"


def side(path: Path, tokens: list[list[int]], digests: list[list[str]]) -> Path:
    path.write_text(json.dumps({"tokens": dict.fromkeys(KINDS, tokens), "digests": digests}))
    return path


def row(tmp_path: Path, ours: list[list[int]], digests: list[list[str]], mode: str) -> MatchRow:
    hf = side(tmp_path / "hf.json", [[1, 2, 3], [4, 5, 6]], [["a", "b"], ["c", "d"]])
    return compare_sides(
        "model", "random", "bfloat16", mode, hf, side(tmp_path / "ours.json", ours, digests), None
    )


def test_equal_answers(tmp_path: Path) -> None:
    found = row(tmp_path, [[1, 2, 3], [4, 5, 6]], [["a", "b"], ["c", "d"]], "exact")
    assert found.is_equal
    assert (found.sequences["greedy"], found.tokens["penalty"]) == (2, 6)
    assert (found.equal_logits, found.num_logits, found.cause) == (4, 4, None)


def test_other_answers_have_a_cause(tmp_path: Path) -> None:
    found = row(tmp_path, [[1, 7, 3], [4, 5, 6]], [["a", "x"], ["c", "d"]], "hf_compat")
    assert not found.is_equal
    assert (found.sequences["sampled"], found.tokens["sampled"]) == (1, 4)
    assert (found.equal_logits, found.num_logits) == (3, 4)
    assert found.cause == UNEXPLAINED


def test_equal_tokens_of_other_logits_are_not_equal(tmp_path: Path) -> None:
    found = row(tmp_path, [[1, 2, 3], [4, 5, 6]], [["a", "b"], ["c", "x"]], "exact")
    assert not found.is_equal
    assert found.cause == UNEXPLAINED


def test_the_page(tmp_path: Path) -> None:
    rows = [
        replace(row(tmp_path, [[1, 2, 3], [4, 5, 0]], [], "upstream"), cpu="one"),
        row(tmp_path, [[1, 7, 3], [4, 5, 6]], [["a", "x"], ["c", "d"]], "hf_compat"),
        MatchRow("model", "random", "bfloat16", "exact", 2, 3, cause="Does not start: no."),
    ]
    text = as_markdown({"cpu": "some"}, rows)
    cells = "1 / 1 / 1 | 1 / 1 / 1 [1] | 75.0% | - [2] | - | one |"
    assert f"| model (random) | bfloat16 | 2 x 3 | {cells}" in text
    assert f"[1] {UNEXPLAINED}" in text
    assert "[2] Does not start: no." in text


def test_the_reason_is_the_sentence_of_the_first_error() -> None:
    pydantic = (
        "pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, The model has no such dtype. Use another. [type=value_error, input=1]\n"
    )
    assert _first_error(pydantic) == "The model has no such dtype. Use another"
    assert _first_error("x\nValueError: No kernel. Reasons:\n a\nTypeError: b") == "No kernel"
    assert _first_error("Killed") is None


def test_new_rows_take_the_place_of_old_ones() -> None:
    old = [MatchRow(name, "", "bfloat16", mode, 2, 3) for name in ("gpt2", "z") for mode in MODES]
    new = [MatchRow("gpt2", "new", "bfloat16", mode, 2, 3) for mode in MODES]
    merged = merge(old, [*new, MatchRow("opt-125m", "", "float32", "exact", 2, 3)])
    assert [(one.model, one.kind) for one in merged] == [
        ("opt-125m", ""), *[("gpt2", "new")] * 3, *[("z", "")] * 3
    ]  # fmt: skip


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PAGE.with_suffix(".json").read_text())
    return found


def test_the_committed_page_is_that_of_its_numbers(committed: dict[str, Any]) -> None:
    rows = [MatchRow(**one) for one in committed["rows"]]
    assert PAGE.with_suffix(".md").read_text() == as_markdown(committed["machine"], rows)


def test_every_architecture_has_its_rows(committed: dict[str, Any]) -> None:
    rows = [MatchRow(**one) for one in committed["rows"]]
    assert {(one.num_prompts, one.num_tokens) for one in rows} == {(64, 128)}
    found = {(one.model, one.dtype, one.mode) for one in rows}
    assert found >= {(*row, mode) for row in product([BUNDLED, *SHAPES], DTYPES) for mode in MODES}


def test_the_committed_rows_keep_what_is_promised(committed: dict[str, Any]) -> None:
    rows = [MatchRow(**one) for one in committed["rows"]]
    for one in rows:
        if one.mode == "exact":
            assert one.is_equal, (one.model, one.dtype)
        if one.mode != "upstream":
            assert one.is_equal or one.cause not in (None, UNEXPLAINED), (one.model, one.dtype)


@pytest.mark.parametrize("name", ["internlm2-1.8b", "gpt2"])
def test_a_definition_of_ours_is_said_to_be_one(name: str, tmp_path: Path) -> None:
    _, kind = model_folder(name, tmp_path)
    assert ("this project's definition" in kind) == (name == "internlm2-1.8b")
