"""The executor that keeps an engine's model in the engine's own process: see `one_process`."""

from __future__ import annotations

import os

import torch

from vllm.fork.flags.settled_warnings import leave_out, leave_out_eager
from vllm.fork.processes.cores import allowed_cores
from vllm.v1.executor.uniproc_executor import UniProcExecutor

THREADS = "OMP_NUM_THREADS"

FEW_CORES = 4
"""Up to so many, the model is given all of them: without one, it would lose a quarter or more."""


class OneProcessExecutor(UniProcExecutor):
    """vLLM's executor in the engine's own process, with a thread on each physical core but one.

    That one is left, as vLLM leaves it, to what runs beside the model: threads wait for each other
    at the end of each operation, and so for what takes the core of one of them. Of `FEW_CORES` or
    fewer, none is left. `THREADS`, where it is set, chooses another number. Where there are cores
    enough, threads run on one logical CPU of each.
    """

    leaves_core = True

    def _init_executor(self) -> None:
        cores = allowed_cores()
        threads = torch.get_num_threads()
        if self.leaves_core and THREADS not in os.environ:
            threads = len(cores) - 1 if len(cores) > FEW_CORES else len(cores)
        if threads <= len(cores):
            os.sched_setaffinity(0, cores)  # of this thread, and of those that it will start
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        if THREADS not in os.environ:
            os.environ[THREADS] = str(threads)  # or vLLM would take all but one of them away
            leave_out("vllm.utils.torch_utils", "OMP_NUM_THREADS=%s is set; leaving Torch threads")
        leave_out_eager()  # a mode's own choice; a user's was said before
        super()._init_executor()
