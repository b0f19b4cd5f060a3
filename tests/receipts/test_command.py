"""``vllm bulk --receipts`` and ``vllm audit`` as people run them."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import vllm_command
from tests.engines import MODEL
from tests.server.conftest import ENVIRONMENT
from vllm.receipts.cli import printable

SMALL = ["--kv-cache-memory-bytes", str(1 << 28)]
ENGINE = [
    "--model", str(MODEL), "--dtype", "bfloat16", "--hf-compat", "--deterministic", "--receipts",
    "--max-model-len", "512", *SMALL,
]  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"prompt": "def f(x):", "max_new_tokens": 20},
    {"prompt": "import os", "max_new_tokens": 20, "do_sample": True, "seed": 7, "n": 2},
    {"prompt": "class A:", "max_new_tokens": 20, "do_sample": True},
    {"prompt": "class A:", "max_new_tokens": 20, "do_sample": True, "receipt": False},
    {"prompt": "return ", "max_new_tokens": 20, "repetition_penalty": 1.2},
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["vllm", *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What ``vllm bulk`` writes for `ROWS`."""
    folder = tmp_path_factory.mktemp("bulk")
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    done = run("bulk", str(folder / "in.jsonl"), str(folder / "out.jsonl"), *ENGINE)
    assert done.returncode == 0, done.stderr
    return (folder / "out.jsonl").read_text().splitlines()


def test_answers_of_bulk(lines: list[str], tmp_path: Path) -> None:
    """Rows with receipts are equal; those without, of a changed text, and torn lines are not."""
    answers = [json.loads(line) for line in lines]
    assert "sampling without a seed" in answers[2]["error"]["message"]
    answers[4]["response"]["body"]["choices"][0]["text"] += "!"
    hidden, foreign, first = (copy.deepcopy(answers[0]) for _ in range(3))
    hidden |= {"error": {}}
    hidden["response"]["body"]["choices"][0]["token_ids"] = [1]
    receipt = foreign["response"]["body"]["choices"][0]["receipt"]
    receipt["x\nline 2: equal\x1b[8m"] = 1
    # A first receipt that is not what was sealed chooses no engine.
    first["response"]["body"]["choices"][0]["receipt"]["flags"]["dtype"] = "float16"
    file = tmp_path / "answers.jsonl"
    torn = lines[0][: len(lines[0]) // 2]
    rows = [first, *answers[1:], answers[0], hidden, foreign]
    file.write_text("\n".join([*map(json.dumps, rows), torn]))
    done = run("audit", str(file), "--json", *SMALL)
    assert done.returncode == 1, done.stderr
    assert done.stdout, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["place"], one["differs"]) for one in found] == [
        ("line 1, answer 1", "flags"),
        ("line 2, answer 1", ""),
        ("line 2, answer 2", ""),
        ("line 4, answer 1", "receipt"),
        ("line 5, answer 1", "text"),
        ("line 6, answer 1", ""),
        ("line 7, answer 1", "text"),
        ("line 8, answer 1", "receipt"),
        ("line 9", "receipt"),
    ]
    counts = "9 audited: 3 equal, 6 differ (1 by flags, 3 by receipt, 2 by text); 1 rows without"
    assert counts in done.stderr


def test_a_line_of_output_is_one_line() -> None:
    assert printable("x\nline 2: equal\x1b[8m \udc00 é") == r"x\nline 2: equal\x1b[8m \udc00 é"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["no/such/file"], "vllm audit: no/such/file: No such file or directory."),
        (["{file}", "--sample", "0"], "vllm audit: --sample=0.0 is no share"),
        (["{empty}"], "has no answers."),
    ],
)
def test_refusals(tmp_path: Path, words: list[str], sentence: str) -> None:
    for name in ("file", "empty"):
        (tmp_path / name).write_text("\n")
    done = vllm_command(
        "audit", *(word.format(file=tmp_path / "file", empty=tmp_path / "empty") for word in words)
    )
    assert done.status == 2
    assert sentence in done.err


def test_flags_that_receipts_need(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    words = [word for word in ENGINE if word != "--deterministic"]
    done = vllm_command("bulk", tmp_path / "in.jsonl", tmp_path / "out.jsonl", *words)
    assert done.status == 1
    assert "give hf_compat=True and deterministic=True, too" in done.err
