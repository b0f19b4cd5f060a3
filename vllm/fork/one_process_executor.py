"""The executor that keeps an engine's model in the engine's own process: see `one_process`."""

from __future__ import annotations

import os

import torch

from vllm.fork.cores import physical_cores
from vllm.utils.cpu_resource_utils import get_allowed_cpu_list
from vllm.v1.executor.uniproc_executor import UniProcExecutor


class OneProcessExecutor(UniProcExecutor):
    """vLLM's executor in the engine's own process, with as many threads as PyTorch has there."""

    def _init_executor(self) -> None:
        keep_to_physical_cores()
        super()._init_executor()


def keep_to_physical_cores() -> None:
    """Let the threads that this one starts run on one logical CPU of each physical core.

    Nothing changes where there are more threads than cores.
    """
    cores = [core[0].id for core in physical_cores(get_allowed_cpu_list())]
    if torch.get_num_threads() <= len(cores):
        os.sched_setaffinity(0, cores)
