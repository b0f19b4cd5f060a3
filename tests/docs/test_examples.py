"""Each example does what its first lines say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.docs.shared import Servers
from tests.engines import ROOT

SERVER = (
    "vllm serve models/tiny-python-llama --hf-compat --dtype float32 --served-model-name tiny "
    "--kv-cache-memory-bytes 268435456"
)
PRINTED: dict[str, list[str]] = {
    "generate.py": ["'def f(x):' -> ", "'import os\\n' -> ", "'class Stack:\\n' -> "],
    "sampling.py": ["equal ", "equal ", "equal "],
    "beams.py": ["search: ", "search: ", "sampling: ", "sampling: "],
    "callback.py": ["["],
    "deterministic.py": ["the same bits (16, 4096)"] * 3,
    "lora.py": ["equal ["],
}
"""How the lines begin that an example prints; `hf_vs_vllm.py` is what ``make demo`` runs, and
``tests/scale_out`` runs those that start several engines, `test_reinforcement` those that train.
"""


def run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


def test_every_example_is_run() -> None:
    names = {path.name for path in (ROOT / "examples").glob("*.py")}
    in_scale_out = {"ray_data.py", "datatrove_pipeline.py"}
    in_reinforcement = {"grpo.py", "grpo_parts.py", "grpo_trl.py"}
    assert names == {*PRINTED, *in_scale_out, *in_reinforcement, "client.py", "hf_vs_vllm.py"}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", PRINTED)
def test_example(
    name: str,
    shared_engines: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    run(name, [], monkeypatch)
    said = [line for line in capsys.readouterr().out.splitlines() if " INFO " not in line]
    lines = [line for line in said if line.startswith(tuple(set(PRINTED[name])))]
    assert len(lines) == len(PRINTED[name]), said
    assert "DIFFERENT" not in "\n".join(said)


def test_the_client(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("client.py", [servers.address_of(SERVER)], monkeypatch)
    answer, stream, refusal = capsys.readouterr().out.rstrip("\n").rsplit("\n", 2)
    assert answer
    assert stream
    assert "num_beam" in refusal
    assert "num_beams" in refusal
