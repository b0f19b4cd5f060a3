"""The process of an examination."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

import vllm.envs as envs
from tests.twin.cases import ANY_LENGTH
from vllm.fork.flags.fork_flags import ForkFlags
from vllm.twin import process
from vllm.twin.process import Task, examine_elsewhere
from vllm.twin.setting import EngineSetting

TASK = Task(LlamaConfig(), EngineSetting(ForkFlags(hf_compat=True), "bfloat16"), ANY_LENGTH, True)


@pytest.mark.long
def test_another_python_finds_what_a_fork_does(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.randn(400, 400) @ torch.randn(400, 400)  # the parent has a team of threads
    forked = examine_elsewhere(TASK)
    monkeypatch.setattr(process, "_may_fork", lambda: False)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert examine_elsewhere(TASK) == forked
    assert forked.finding.agreement == "bits"
    assert "model.layers.1.mlp" in {one.name for one in forked.modules if not one.is_other}


def test_an_engine_in_the_parent_disturbs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker takes torch.set_num_threads away, and keeps vLLM's variables."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.randn(400, 400) @ torch.randn(400, 400)  # the parent has a team of threads
    with monkeypatch.context() as changed:
        changed.setattr(torch, "set_num_threads", lambda _: None)
        changed.setattr(process, "_LIMIT_S", 120.0)
        envs.enable_envs_cache()
        try:
            finding = examine_elsewhere(TASK).finding
        finally:
            envs.disable_envs_cache()
    torch.set_num_threads(threads)
    assert finding.agreement == "bits"


def test_a_process_that_dies_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "answer", lambda *_: os.kill(os.getpid(), 9))
    finding = examine_elsewhere(TASK).finding
    assert (finding.agreement, finding.reason) == ("unknown", "its process ended with status 9")


def test_a_process_that_hangs_is_ended_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hang(_: Task, __: int, folder: str) -> None:
        Path(folder, "model.safetensors").touch()
        time.sleep(60)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(process, "_LIMIT_S", 0.5)
    monkeypatch.setattr(process, "answer", hang)
    assert examine_elsewhere(TASK).finding.reason == "it took longer than 0 s"
    assert not [*tmp_path.iterdir()]
