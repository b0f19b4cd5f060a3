"""A process for each case, forked from one that has imported everything."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_PACKAGES = ("transformers", "vllm")

Job = Callable[[], Any]
"""What a process computes: something that JSON has."""


@dataclass(frozen=True)
class Answer:
    """What became of a job.

    Attributes:
        value: that it returned; None if it failed.
        error: how it failed; empty if it did not.
        seconds: that it took.
    """

    value: Any
    error: str
    seconds: float


@dataclass
class _Child:
    pid: int
    start: float
    data: bytes = b""


def answers(
    jobs: Iterable[tuple[Any, Job]], workers: int, limit: float
) -> Iterator[tuple[Any, Answer]]:
    """Yield the answer of each job with its key, as they come.

    Args:
        jobs: each with a key; taken when there is a process for it.
        workers: how many processes there are at once.
        limit: seconds for each.
    """
    rest = iter(jobs)
    running: dict[int, tuple[Any, _Child]] = {}
    while True:
        while len(running) < workers and (one := next(rest, None)) is not None:
            pipe, child = _start(one[1])
            running[pipe] = one[0], child
        if not running:
            return
        for pipe in _ended(running, limit):
            key, child = running.pop(pipe)
            os.close(pipe)
            yield key, _answer(child)


def _start(job: Job) -> tuple[int, _Child]:
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child has not
        pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            _run(job, write)
        finally:
            os._exit(0)
    os.close(write)
    return read, _Child(pid, time.monotonic())


def _run(job: Job, write: int) -> None:
    """Run a job in this process, and write its answer to a pipe."""
    import torch

    gc.freeze()  # or each collection would go through the parent's objects
    _be_quiet()
    torch.set_num_threads(1)
    before = {*sys.modules}
    found: dict[str, Any] = {}
    try:
        found["value"] = job()
    except BaseException as error:
        found["error"] = f"{type(error).__name__}: {error}"[:500]
    found["modules"] = [
        name for name in sys.modules if name not in before and name.split(".")[0] in _PACKAGES
    ]
    data = json.dumps(found).encode()
    while data:
        data = data[os.write(write, data) :]


def _be_quiet() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    os.dup2(silence, 2)


def _ended(running: dict[int, tuple[Any, _Child]], limit: float) -> list[int]:
    """Wait for the pipes that come to their end; processes that take too long are ended."""
    ready = select.select([*running], [], [], 1.0)[0]
    ended = []
    for pipe in ready:
        part = os.read(pipe, 1 << 16)
        running[pipe][1].data += part
        if not part:
            ended.append(pipe)
    for pipe, (_, child) in running.items():
        if pipe not in ended and time.monotonic() - child.start > limit:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            ended.append(pipe)
    return ended


def _answer(child: _Child) -> Answer:
    _, status = os.waitpid(child.pid, 0)
    seconds = time.monotonic() - child.start
    with suppress(ValueError):
        found = json.loads(child.data)
        _import(found["modules"])
        return Answer(found.get("value"), found.get("error", ""), seconds)
    reason = "it took too long" if os.WIFSIGNALED(status) else f"it ended with status {status}"
    return Answer(None, reason, seconds)


def _import(names: list[str]) -> None:
    """Import what a process has imported, so that the next ones need not."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)
