"""One process for an engine's scheduler and its model, on CPUs, where it has one rank.

Why: vLLM gives the model a process of its own there, since OpenMP is told which thread runs on
  which core before a process begins. An engine with a flag leaves that to the system, among its
  cores. So it starts with one import of everything less, and scheduler and model send each other no
  messages.
Upstream status: Not reported yet: a matter of defaults.
Exit condition: Upstream has scheduler and model in one process on CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import vllm.envs as envs
from vllm.fork.processes.cores import chosen_threads
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.fork.flags.fork_flags import ForkFlags

EXECUTOR = "vllm.fork.processes.one_process_executor.OneProcessExecutor"
"""Name of `one_process_executor.OneProcessExecutor` for ``distributed_executor_backend``."""


def use_one_process(args: EngineArgs, flags: ForkFlags) -> None:
    """Choose `EXECUTOR` where nothing asks for processes or for other threads, in place.

    ``distributed_executor_backend="mp"`` asks for them, as does `THREADS_BIND`. An engine that
    lives in its caller's process keeps the model out of it: its threads are the caller's.
    """
    if (
        flags.has_sampler
        and current_platform.is_cpu()
        and args.distributed_executor_backend in (None, "uni")
        and _has_one_rank(args)
        and args.kv_transfer_config is None
        and chosen_threads() is None
        and envs.VLLM_ENABLE_V1_MULTIPROCESSING
    ):
        args.distributed_executor_backend = EXECUTOR


def _has_one_rank(args: EngineArgs) -> bool:
    sizes = (
        args.tensor_parallel_size,
        args.pipeline_parallel_size,
        args.prefill_context_parallel_size,
        args.data_parallel_size,
    )
    return all(size == 1 for size in sizes) and args.data_parallel_rank is None
