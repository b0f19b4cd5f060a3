"""An engine whose process is killed ends the call that waits for it, and those that follow."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil
import pytest

from tests.engines import bundled_engine
from vllm import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError


def engine_processes() -> set[psutil.Process]:
    """The processes of this process's engines."""
    return {
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE
        and any("EngineCore" in word for word in child.cmdline())
    }


@pytest.mark.parametrize(
    "hf_compat",
    [
        pytest.param(True, id="hf_compat"),
        pytest.param(False, id="no flag", marks=pytest.mark.long),
    ],
)
def test_a_killed_engine(hf_compat: bool) -> None:
    before = engine_processes()  # other tests of this process may keep engines of theirs
    with bundled_engine(hf_compat=hf_compat, enforce_eager=True) as llm:
        params = SamplingParams(max_tokens=1500, ignore_eos=True)
        (engine,) = engine_processes() - before
        killer = threading.Timer(2, os.kill, (engine.pid, signal.SIGKILL))
        killer.start()
        begin = time.monotonic()
        with pytest.raises(EngineDeadError):
            llm.generate(["def"] * 64, params, use_tqdm=False)
        assert time.monotonic() - begin < 60
        with pytest.raises(EngineDeadError):
            llm.generate(["def"], params, use_tqdm=False)
