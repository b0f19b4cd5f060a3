"""Processes that tests start, find and kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil
import pytest

from tests.engines import ROOT
from tests.server.conftest import ENVIRONMENT

LIMIT_S = 300


def start_example(
    name: str, source: Path, target: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start an example of bulk jobs; what it prints goes beside its output.

    Args:
        name: of the script.
        source: the rows.
        target: the answers.
        variables: of its environment, beside those of all commands that tests start.
    """
    with target.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, f"examples/{name}", source, target],
            cwd=ROOT,
            env={**ENVIRONMENT, **variables},
            stdout=log,
            stderr=log,
        )


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes that one has started, and those that they have."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def named(processes: Iterable[psutil.Process], part: str) -> list[psutil.Process]:
    """Return those whose command line, which is their title, has `part` in it."""
    found = []
    for process in processes:
        try:
            if part in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill(process: psutil.Process) -> None:
    """End a process as an empty battery does."""
    process.send_signal(signal.SIGKILL)


def end_all(processes: Iterable[psutil.Process]) -> None:
    """Let processes end that should have, and kill the others."""
    left = list(processes)
    for process in psutil.wait_procs(left, timeout=10)[1]:
        process.kill()
    assert not psutil.wait_procs(left, timeout=10)[1]


def wait_until(is_so: Callable[[], object], running: subprocess.Popen[bytes], said: str) -> None:
    """Return once `is_so`; fail if `running` ends before, or it takes too long."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        if running.poll() is not None:
            pytest.fail(f"it ended with {running.returncode} before {said}")
        if time.monotonic() > deadline:
            pytest.fail(f"it took more than {LIMIT_S} seconds: {said}")
        time.sleep(0.05)
