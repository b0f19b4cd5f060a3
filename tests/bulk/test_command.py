"""``vllm bulk`` as people run it: processes, an engine in them, and what ends them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerBase

from tests.command_line import vllm_command
from tests.engines import MODEL, ROOT
from tests.reference import equal_to_the_end, generate_all, prompt_texts
from tests.server.conftest import CHAT_TEMPLATE, ENVIRONMENT
from tests.sizes import size
from vllm.bulk.output import journal_of, summary_of

NUM_ROWS = size(40, 120)
NUM_KILLS = size(1, 200)
LIMIT_S = 300

FLAGS = [
    "--model", str(MODEL), "--hf-compat", "strict", "--dtype", "bfloat16",
    "--max-model-len", "1024", "--max-num-batched-tokens", "1024", "--max-num-seqs", "8",
    "--chat-template", CHAT_TEMPLATE, "--kv-cache-memory-bytes", str(1 << 28),
]  # fmt: skip
"""Bits that do not depend on the batch; eight at a time, so that a run takes a while."""

FILL = {0, 2}
"""The padding and the end of the bundled model."""

KINDS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "top_k": 30, "temperature": 0.9},
    {"repetition_penalty": 1.3},
    {"num_beams": 3},
    {"do_sample": True, "num_return_sequences": 2},
]
BAD: dict[int, Any] = {
    7: {"prompt": "a", "repetition_penality": 1.2},
    11: {"prompt": "a", "max_new_tokens": "many"},
    13: {"messages": [], "prompt": "a"},
    17: "no object",
    19: {"prompt": "a", "max_new_tokens": 4000},
    23: {"prompt": "a", "num_beams": 64},
    29: {"prompt": "a", "receipt": True},
    31: {"prompt": "a", "n": 2, "best_of": 3},
}


def rows() -> list[Any]:
    """Rows of all kinds, greedy or with a seed, and some bad ones."""
    texts = [text[:600] for text in prompt_texts(NUM_ROWS)]
    found: list[Any] = []
    for i, text in enumerate(texts):
        fields = {"max_new_tokens": 4 + i % 40, "seed": i, **KINDS[i % len(KINDS)]}
        if i in BAD:
            found.append(BAD[i])
        elif i % 3 == 0:
            messages = [{"role": "user", "content": text}]
            body = {"messages": messages, **fields}
            found.append({"custom_id": f"c{i}", "url": "/v1/chat/completions", "body": body})
        else:
            found.append({"prompt": text, "return_token_ids": True, **fields})
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("input") / "input.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return file


@contextmanager
def started(source: Path, output: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command in a process group of its own, as a terminal does."""
    process = subprocess.Popen(
        ["vllm", "bulk", str(source), str(output), *FLAGS, *flags],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run(source: Path, output: Path, *flags: str) -> tuple[int, str, str]:
    """Run the command to its end; return status and what it printed."""
    with started(source, output, *flags) as process:
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def uninterrupted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The output of a run that nobody disturbed, and what it printed."""
    output = tmp_path_factory.mktemp("whole") / "output.jsonl"
    status, out, err = run(source, output)
    assert status == 0, err
    return output, out, err


def lines_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_what_it_says(uninterrupted: tuple[Path, str, str]) -> None:
    """One line at the end, and no bar where there is no terminal."""
    output, out, err = uninterrupted
    assert out.startswith(f"{NUM_ROWS} rows answered, {len(BAD)} with an error; ")
    assert out.endswith(f"Written to {output}\n")
    assert "row/s" not in err
    assert not journal_of(output).exists()
    assert json.loads(summary_of(output).read_text())["errors"] == len(BAD)


def test_answers_are_those_of_generate_in_the_inputs_order(
    uninterrupted: tuple[Path, str, str], tokenizer: PreTrainedTokenizerBase
) -> None:
    hf_model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()
    found = lines_of(uninterrupted[0])
    assert len(found) == NUM_ROWS
    compared = 0
    for i, (row, line) in enumerate(zip(rows(), found, strict=True)):
        expected_id = row.get("custom_id", str(i)) if isinstance(row, dict) else str(i)
        assert line["custom_id"] == expected_id
        if i in BAD or "prompt" not in row or i % 4:
            continue
        fields = {name: row[name] for name in row if name in GenerationConfig().to_dict()}
        ids = tokenizer(row["prompt"])["input_ids"]
        answers = [one["token_ids"] for one in line["response"]["body"]["choices"]]
        expected = generate_all(hf_model, ids, GenerationConfig(**fields, seed=row["seed"]))
        assert len(answers) == len(expected)
        for tokens, sequence in zip(answers, expected, strict=True):
            assert equal_to_the_end(tokens, sequence, FILL)
        compared += 1
    assert compared > NUM_ROWS // 10


def test_bad_rows_have_their_reason(uninterrupted: tuple[Path, str, str]) -> None:
    found = lines_of(uninterrupted[0])
    assert {i for i, line in enumerate(found) if line["error"]} == set(BAD)
    reasons = {i: found[i]["error"]["message"] for i in BAD}
    assert "repetition_penalty" in reasons[7]
    assert "max_new_tokens" in reasons[11]
    assert "A row has a prompt, or messages" in reasons[13]
    assert reasons[17] == "Line 18 is no JSON object: write one object in a line."
    assert "max_model_len=1024" in reasons[19]
    assert "or start with a higher --max-num-beams" in reasons[23]
    assert "start with --receipts, or leave receipt out" in reasons[29]
    assert "best_of would choose" in reasons[31]


def test_no_reason_speaks_of_a_server(uninterrupted: tuple[Path, str, str]) -> None:
    """There is none: the reasons are those of one, for whom it is the same to start."""
    for line in lines_of(uninterrupted[0]):
        assert "server" not in (line["error"] or {}).get("message", ""), line


@pytest.mark.long
def test_a_run_that_is_killed_writes_the_same_bytes(
    source: Path, uninterrupted: tuple[Path, str, str], tmp_path: Path
) -> None:
    rng = random.Random(0)
    output = tmp_path / "output.jsonl"
    kills = 0
    while kills < NUM_KILLS:
        for leftover in tmp_path.iterdir():
            leftover.unlink()
        while kills < NUM_KILLS and not output.exists():
            kills += _killed(source, output, rng)
        if not output.exists():
            status, _, err = run(source, output)
            assert status == 0, err
        assert output.read_bytes() == uninterrupted[0].read_bytes()


def _killed(source: Path, output: Path, rng: random.Random) -> bool:
    """Start a run and kill it a little later than its first new answer; return whether it lived."""
    before = _size(journal_of(output))
    with started(source, output, "--concurrency", "12") as process:
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None and _size(journal_of(output)) <= max(before, 1500):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 2))
        lived = process.poll() is None
        process.kill()
        process.communicate()
        return lived


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def test_ctrl_c_finishes_what_runs_and_the_same_command_goes_on(
    source: Path, uninterrupted: tuple[Path, str, str], tmp_path: Path
) -> None:
    output = tmp_path / "output.jsonl"
    with started(source, output, "--concurrency", "4") as process:
        while _size(journal_of(output)) < 3000:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # a terminal tells all processes
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "The same command goes on with them." in err
    assert not output.exists()
    kept = journal_of(output).read_bytes()
    # Neither another input nor another flag goes on, and nothing of the log is lost by asking.
    other = tmp_path / "other.jsonl"
    other.write_text(source.read_text() + '{"prompt": "one more"}\n')
    for given, flags, reason in [
        (other, [], "differs in the input"),
        (source, ["--max-num-batched-tokens", "99"], "--max-num-batched-tokens"),
    ]:
        refused = vllm_command("bulk", given, output, *FLAGS, *flags)
        assert refused.status == 1
        assert reason in refused.err
        assert journal_of(output).read_bytes() == kept
    status, out, err = run(source, output)
    assert status == 0, err
    assert "of them at earlier starts" in out
    assert output.read_bytes() == uninterrupted[0].read_bytes()


def test_a_complete_run_is_not_run_again(
    source: Path, uninterrupted: tuple[Path, str, str]
) -> None:
    output = uninterrupted[0]
    before = output.stat().st_mtime_ns
    again = vllm_command("bulk", source, output, *FLAGS)
    assert (again.status, again.out) == (0, f"{output} is complete already: {NUM_ROWS} rows.\n")
    refused = vllm_command("bulk", source, output, *FLAGS, "--seed", "5")
    assert refused.status == 1
    assert "--seed (not given before; 5 now)" in refused.err
    assert output.stat().st_mtime_ns == before
