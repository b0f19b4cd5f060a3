"""``vllm parity record`` and ``compare``: where the answers of two machines part."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.engines import MODEL, ROOT
from vllm.parity import Setting, compare_recordings, html, record, terminal
from vllm.parity.machine import machine
from vllm.parity.recording import Recording
from vllm.parity.recordings import RecordingsCompared, total_variation
from vllm.parity.setting import PROMPTS

SETTING = Setting(str(MODEL), "bfloat16", PROMPTS[:3], max_new_tokens=8)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "one.json"
    record(SETTING, "hf", path)
    return path


@pytest.fixture
def copied(recorded: Path, tmp_path: Path) -> Path:
    path = tmp_path / "other.json"
    path.write_bytes(recorded.read_bytes())
    return path


def shown(compared: RecordingsCompared) -> str:
    out = StringIO()
    terminal.show_recordings(compared, Console(file=out, width=120))
    return out.getvalue()


def test_a_recording_keeps_the_likeliest_tokens(recorded: Path, copied: Path) -> None:
    """As many as are asked for, in their order, and the chosen one."""
    found = Recording.read(recorded)
    assert [len(one.tokens) for one in found.answers] == [8, 8, 8]
    for answer in found.answers:
        for token, step in zip(answer.tokens, answer.logprobs, strict=True):
            assert len(step) == 10
            assert list(step.values()) == sorted(step.values(), reverse=True)
            assert token in step
            assert set(step) <= set(found.token_texts)
    record(SETTING, "hf", copied, num_candidates=1)
    again = Recording.read(copied)
    assert [one.tokens for one in again.answers] == [one.tokens for one in found.answers]
    # The chosen one is there, too, where another is as likely: which is first depends on threads.
    assert all(len(set(step.values())) == 1 for one in again.answers for step in one.logprobs)
    with pytest.raises(ValueError, match="candidates=21 must be 1 to 20"):
        record(SETTING, "hf", copied, num_candidates=21)


def test_recordings_of_one_machine_are_equal(recorded: Path, copied: Path) -> None:
    record(SETTING, "hf", copied)
    found = compare_recordings(recorded, copied)
    assert (found.num_equal, found.num_answers, found.partings) == (3, 3, [])
    assert (found.num_equal_steps, found.num_steps) == (24, 24)
    assert (found.facts, found.max_logprob_difference, found.max_distance) == ({}, 0.0, 0.0)
    assert "answers equal: 3 of 3" in shown(found)
    assert "Nowhere: all answers are equal." in html.recordings_page(found)


def test_what_was_changed_is_told(recorded: Path, copied: Path) -> None:
    """Another CPU and variable; an answer that parts, whose candidates are marked."""
    changed = json.loads(copied.read_text())
    changed["machine"] |= {"cpu": "another <b>", "VLLM_FORK_CPU_ISA": "avx2"}
    first, second, _ = changed["answers"]
    likeliest, next_ = (token for token, _ in first["logprobs"][5][:2])
    first["tokens"][5] = next_
    first["logprobs"][5][0][1] -= 2.0
    second["logits_digests"][0] = "0" * 16
    second["logprobs"][3][0][1] -= 0.25
    copied.write_text(json.dumps(changed))
    found = compare_recordings(recorded, copied)
    assert (found.num_equal, found.num_equal_steps, found.num_steps) == (2, 20, 21)
    assert found.max_logprob_difference == pytest.approx(0.25)
    assert found.facts == {
        "machine: cpu": (machine()["cpu"], "another <b>"),
        "machine: VLLM_FORK_CPU_ISA": (None, "avx2"),
    }
    (parting,) = found.partings
    assert (parting.prompt, parting.step, parting.text) == (0, 5, PROMPTS[0])
    assert parting.distance_before == 0.0
    probability = math.exp(json.loads(recorded.read_text())["answers"][0]["logprobs"][5][0][1])
    assert parting.distance == pytest.approx(probability * (1 - math.exp(-2)))
    chosen = {one.chosen_by: one.token_id for one in parting.candidates if one.chosen_by}
    assert chosen == {"a": likeliest, "b": next_}
    assert len(parting.candidates) == 10
    text, page = shown(found), html.recordings_page(found)
    for part in ("prompt 0, token 5 after", repr(found.token_texts[next_]), "another <b>", "avx2",
                 "answers equal: 2 of 3", "apart, at most 0.00% before it"):  # fmt: skip
        assert part in text, part
    assert "another &lt;b&gt;" in page
    assert "<script" not in page
    assert page.count('<tr class="a">') == page.count('<tr class="b">') == 1
    assert json.loads(found.as_json())["num_equal"] == 2


def test_an_answer_that_ends_sooner_parts_there(recorded: Path, copied: Path) -> None:
    changed = json.loads(copied.read_text())
    for name in ("tokens", "logprobs", "logits_digests"):
        del changed["answers"][2][name][6:]
    copied.write_text(json.dumps(changed))
    (parting,) = compare_recordings(recorded, copied).partings
    assert (parting.prompt, parting.step, parting.distance) == (2, 6, 1.0)
    assert {one.chosen_by for one in parting.candidates} == {"a", ""}


def test_total_variation() -> None:
    """Of what both know; what is left of each counts as one token."""
    p, q = {1: math.log(0.5), 2: math.log(0.3)}, {1: math.log(0.4), 3: math.log(0.35)}
    assert total_variation(p, p) == 0.0
    assert total_variation(p, q) == pytest.approx(0.1)
    assert total_variation({1: 0.0}, {2: 0.0}) == 0.0, "nothing is known of a token of both"


def test_files_that_are_no_recordings(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for text in ("", "[]", "{}", '{"format": 0}', '{"format": 2}', '{"format": 2, "answers": [1]}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="is no recording of this version"):
            compare_recordings(path, path)
    with pytest.raises(ValueError, match=r"none\.json: No such file or directory\."):
        compare_recordings(tmp_path / "none.json", path)


def test_other_prompts_are_refused(recorded: Path, copied: Path) -> None:
    changed = json.loads(copied.read_text())
    changed["prompts"][0] = [1]
    copied.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="answer different prompts: record both with the same"):
        compare_recordings(recorded, copied)


@pytest.mark.long
def test_two_instruction_sets_of_this_machine(tmp_path: Path) -> None:
    """Transformers in bfloat16: other bits, with the capability and the variable as the cause."""
    sets = ("default", "avx2")  # of PyTorch's own kernels
    files = [tmp_path / f"{name}.json" for name in sets]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "parity", "record", "--side"]
    for name, file in zip(sets, files, strict=True):
        done = subprocess.run(
            [*command, "hf", "--max-new-tokens", "8", "--output", str(file)],
            env=os.environ | {"ATEN_CPU_CAPABILITY": name}, cwd=ROOT, text=True,
            capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    found = compare_recordings(*files)
    assert found.num_equal_steps is not None
    assert found.num_equal_steps < found.num_steps
    assert 0 < found.max_distance < 0.2
    assert found.facts == {
        "machine: cpu_capability": ("DEFAULT", "AVX2"),
        "machine: ATEN_CPU_CAPABILITY": sets,
    }
