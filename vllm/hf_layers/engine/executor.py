"""Gives a model with HF's bits as many threads as PyTorch has by default, and a core to each.

How a library splits a matrix product between threads decides in which order it adds, so bits depend
on how many there are. vLLM leaves a core to its scheduler, and would have one thread less.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vllm.fork.processes.cores import THREADS_BIND, allowed_cores, chosen_threads
from vllm.fork.processes.one_process_executor import OneProcessExecutor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor


class HFExecutor(MultiprocExecutor):
    """vLLM's executor of processes on CPU, with another choice of threads.

    `VLLM_CPU_OMP_THREADS_BIND`, where it is set, keeps its meaning.
    """

    def _init_executor(self) -> None:
        with cores_of_pytorch(self.parallel_config.data_parallel_rank_local or 0):
            super()._init_executor()


class HFOneProcessExecutor(OneProcessExecutor):
    """The executor in the engine's own process, with as many threads as PyTorch has."""

    leaves_core = False


@contextmanager
def cores_of_pytorch(engine: int) -> Iterator[None]:
    """Bind the threads of an engine that is started, number `engine` of those that share a machine
    by data parallelism: each takes the list of its number.
    """
    if chosen_threads() is not None:
        yield
        return
    bind = threads_bind(torch.get_num_threads(), allowed_cores())
    os.environ[THREADS_BIND] = bind if bind == "nobind" else "|".join([bind] * (engine + 1))
    try:
        yield
    finally:
        del os.environ[THREADS_BIND]


def threads_bind(num_threads: int, cores: list[int]) -> str:
    """Return `VLLM_CPU_OMP_THREADS_BIND` for so many threads.

    Args:
        num_threads: to start.
        cores: ids of logical CPUs, one of each physical core.

    Returns:
        ids of logical CPUs, or "nobind" if there are not enough of them.
    """
    if num_threads > len(cores):
        return "nobind"
    return ",".join(map(str, cores[:num_threads]))
