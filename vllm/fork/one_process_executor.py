"""The executor that keeps an engine's model in the engine's own process: see `one_process`."""

from __future__ import annotations

import os

import torch

from vllm.fork.cores import physical_cores
from vllm.utils.cpu_resource_utils import get_allowed_cpu_list
from vllm.v1.executor.uniproc_executor import UniProcExecutor


class OneProcessExecutor(UniProcExecutor):
    """vLLM's executor in the engine's own process, with a thread on each physical core but one.

    That one is left, as vLLM leaves it, to what runs beside the model: threads wait for each other
    at the end of each operation, and so for what takes the core of one of them.
    `OMP_NUM_THREADS`, where it is set, chooses another number.
    """

    leaves_core = True

    def _init_executor(self) -> None:
        cores = [core[0].id for core in physical_cores(get_allowed_cpu_list())]
        if self.leaves_core and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, len(cores) - 1))
        keep_to(cores)
        super()._init_executor()


def keep_to(cores: list[int]) -> None:
    """Let the threads that this one starts run on these logical CPUs, if they are enough.

    Args:
        cores: ids of logical CPUs, one of each physical core.
    """
    if torch.get_num_threads() <= len(cores):
        os.sched_setaffinity(0, cores)
