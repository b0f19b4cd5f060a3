"""The examples of reinforcement learning: trainer and engine agree in each step, bit for bit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import ROOT
from tests.server.conftest import ENVIRONMENT

pytestmark = pytest.mark.long

STEP = re.compile(r"step (\d+): reward ([\d.]+), (?:log-ratios|apart) at most (\S+)\n")


def start(example: str, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, f"examples/{example}", *flags],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def steps(example: str, *flags: str) -> list[tuple[int, float]]:
    """Run an example to its end; return the number of each step, and how far it was apart."""
    process = start(example, *flags)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    return [(int(number), float(apart)) for number, _, apart in STEP.findall(out)]


def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    """With the weights, the optimizer and the step that it had; its server was killed, too."""
    flags = ("--folder", str(tmp_path / "kept"))
    first = start("grpo.py", *flags, "--steps", "1000")
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("step 2:"):
            break
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    found = steps("grpo.py", *flags, "--steps", "50", "--sleep")
    assert found[0][0] in (3, 4)  # a step may have ended that was not printed
    assert found[-1][0] == 50
    assert {apart for _, apart in found} == {0.0}


def test_adapters_that_are_trained() -> None:
    num_steps = 50
    assert steps("grpo.py", "--lora", "--steps", str(num_steps)) == [
        (number, 0.0) for number in range(1, num_steps + 1)
    ]


def test_the_trainer_of_trl() -> None:
    num_steps = 20
    assert steps("grpo_trl.py", "--steps", str(num_steps)) == [
        (number, 0.0) for number in range(1, num_steps + 1)
    ]


@pytest.mark.parametrize(("example", "flag"), [("grpo.py", "--plain"), ("grpo_trl.py", "--stock")])
def test_they_are_apart_otherwise(example: str, flag: str) -> None:
    """What the examples print is not 0 by itself."""
    assert all(apart > 1e-4 for _, apart in steps(example, flag, "--steps", "2"))
