"""Examines a definition in a process of its own, whose engine leaves nothing behind.

The process is forked, since importing everything again would take longer than the examination. It
has one thread, as data loaders have, so that no team of threads of the parent is waited for. Where
a fork would copy what cannot be used in two processes (CUDA, a group of ranks), another Python is
started.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

import vllm.envs as envs
from vllm.hf_layers.definition.finding import Finding, ModuleDifference
from vllm.twin.setting import EngineSetting

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_LIMIT_S = 300.0
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # no team of threads may begin in a fork
}
_KV_CACHE_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""The size of the engine's cache, which would be the twin's."""


@dataclass(frozen=True)
class Task:
    """What is examined.

    Attributes:
        config: of the model, as Transformers reads it.
        setting: of the engine.
        max_model_len: tokens of the longest text that the engine takes.
        with_modules: whether modules are compared, too, one by one.
        with_causes: whether the cause of a difference is looked for.
    """

    config: PreTrainedConfig
    setting: EngineSetting
    max_model_len: int
    with_modules: bool = False
    with_causes: bool = True


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        finding: of the definition.
        modules: of all that both sides have; none if none were to be compared, or could be.
    """

    finding: Finding
    modules: tuple[ModuleDifference, ...] = ()

    def as_json(self) -> str:
        """Return the text that travels between processes."""
        return json.dumps(
            {"finding": self.finding.as_json(), "modules": [*map(asdict, self.modules)]}
        )

    @classmethod
    def of_json(cls, text: bytes) -> Answer:
        """Return the answer of a text.

        Raises:
            ValueError: it is none.
            TypeError: likewise.
        """
        found = json.loads(text)
        modules = tuple(ModuleDifference(**one) for one in found["modules"])
        return cls(Finding.of_json(found["finding"]), modules)


def examine_elsewhere(task: Task, is_fresh: bool = False) -> Answer:
    """Examine a definition in another process; see `examination.examine`.

    Args:
        task: see `Task`.
        is_fresh: whether it is another Python, which has nothing of what this one has tried, or was
            told, about the order of products.
    """
    # What a process that is killed leaves on disk is removed here.
    with tempfile.TemporaryDirectory(prefix="vllm-twin-", ignore_cleanup_errors=True) as folder:
        answer, status = _answer_of_process(task, folder, is_fresh)
    with suppress(ValueError, TypeError):
        return Answer.of_json(answer or b"")
    late = f"it took longer than {_LIMIT_S:.0f} s"
    reason = late if answer is None else f"its process ended with status {status}"
    return Answer(Finding("unknown", reason))


def _answer_of_process(task: Task, folder: str, is_fresh: bool) -> tuple[bytes | None, int]:
    """Return what the process writes, which is None if it is late, and its status."""
    read, write = os.pipe()
    try:
        start = _fork if _may_fork() and not is_fresh else _start
        pid = start(task, write, folder)
    finally:
        os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = _read_all(pipe.fileno(), time.monotonic() + _LIMIT_S)
    if answer is None:
        os.kill(pid, signal.SIGKILL)
    return answer, os.waitpid(pid, 0)[1]


def _read_all(pipe: int, until: float) -> bytes | None:
    """Return all that is written to a pipe; None if its end does not come in time."""
    found = b""
    while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
        if not (part := os.read(pipe, 1 << 16)):
            return found
        found += part
    return None


def _may_fork() -> bool:
    if torch.cuda.is_initialized():
        return False
    distributed = torch.distributed
    return not distributed.is_initialized() or distributed.get_world_size() == 1


def _fork(task: Task, write: int, folder: str) -> int:
    import vllm.v1.worker.gpu_worker  # noqa: F401 (the engine after the twin needs it, too)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child has not
        pid = os.fork()
    if pid == 0:
        try:
            gc.freeze()  # or each collection would go through the parent's objects
            answer(task, write, folder)
        finally:
            os._exit(0)
    return pid


def _start(task: Task, write: int, folder: str) -> int:
    child = subprocess.Popen(
        [sys.executable, "-m", "vllm.twin.process", str(write), folder],
        stdin=subprocess.PIPE,
        pass_fds=[write],
        env=_alone(os.environ),
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError), child.stdin:
        pickle.dump(task, child.stdin)
    child.returncode = 0  # it is waited for elsewhere
    return child.pid


def _alone(environment: os._Environ[str]) -> dict[str, str]:
    """Return an environment that names no group of ranks."""
    group = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in environment.items() if name not in group}


def answer(task: Task, write: int, folder: str) -> None:
    """Examine a definition in this process, and write the finding to a pipe.

    Args:
        task: see `Task`.
        write: a file descriptor.
        folder: for temporary files.
    """
    _be_quiet(write)
    tempfile.tempdir = folder
    os.environ |= _ENVIRONMENT
    os.environ.pop(_KV_CACHE_SPACE, None)
    # An engine in the parent keeps vLLM's variables as they were, and torch.set_num_threads from
    # having an effect: a team of threads would begin in the fork, and wait for ever.
    envs.disable_envs_cache()
    torch._C.set_num_threads(1)
    with os.fdopen(write, "w") as pipe:
        pipe.write(_answer(task).as_json())


def _answer(task: Task) -> Answer:
    from vllm.twin.examination import examine, examine_modules

    finding = examine(task.config, task.setting, task.max_model_len, task.with_causes)
    if not task.with_modules or finding.agreement == "unknown":
        return Answer(finding)
    return Answer(finding, tuple(examine_modules(task.config, task.setting, task.max_model_len)))


def _be_quiet(write: int) -> None:
    """Let nothing of the twin's engine come to the terminal."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        if stream != write:
            os.dup2(silence, stream)


if __name__ == "__main__":
    answer(pickle.load(sys.stdin.buffer), int(sys.argv[1]), sys.argv[2])
