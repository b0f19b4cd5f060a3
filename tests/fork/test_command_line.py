"""Refusals of an engine's arguments, as commands say them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm.fork.flags.command_line import as_on_command_line, ending_commands

MODEL = Path("models/tiny-python-llama")


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("hf_compat=True: no.", "--hf-compat: no."),
        ("split_qkv=False does not go.", "--no-split-qkv does not go."),
        (
            'use hf_compat="exact", or max_model_len=64.',
            "use --hf-compat exact, or --max-model-len 64.",
        ),
        ("because of clip_qkv=0.3", "because of clip_qkv=0.3"),
    ],
)
def test_arguments_are_written_as_flags(sentence: str, expected: str) -> None:
    assert as_on_command_line(sentence) == expected


@ending_commands
def refuse() -> None:
    raise ValueError("hf_compat=True: no.")


def test_commands_end_with_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "model"])
    with pytest.raises(SystemExit, match=r"^vllm serve: --hf-compat: no\.$"):
        refuse()


def test_python_is_raised_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["script.py"])
    with pytest.raises(ValueError, match="hf_compat=True: no"):
        refuse()


def test_a_server_says_it_at_last_and_ends() -> None:
    command = ["vllm", "serve", str(MODEL), "--hf-compat", "strict", "--dtype", "float32"]
    ended = subprocess.run(
        [str(Path(sys.executable).parent / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("vllm serve: --hf-compat strict does not go")
    assert "Traceback" not in ended.stderr
