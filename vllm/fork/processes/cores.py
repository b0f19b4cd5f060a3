"""Which cores the threads of an engine on CPUs have.

vLLM gives each rank a NUMA node of its own, and stops where there are not enough of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vllm.logger import init_logger
from vllm.utils import cpu_resource_utils
from vllm.utils.cpu_resource_utils import LogicalCPUInfo

if TYPE_CHECKING:
    from vllm.config import ParallelConfig
    from vllm.utils.ompmultiprocessing import OMPProcessManager

logger = init_logger(__name__)

THREADS_BIND = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM's variable that says on which logical CPUs the threads of each rank run."""

Core = list[LogicalCPUInfo]
"""The logical CPUs of a physical core."""


def chosen_threads() -> str | None:
    """Return the threads that are chosen by hand (`THREADS_BIND`); None if the engine chooses."""
    value = os.environ.get(THREADS_BIND, "auto")
    return None if value == "auto" else value


def split_cores(
    nodes: list[int], cpus: list[LogicalCPUInfo], manager: OMPProcessManager
) -> tuple[list[int], list[LogicalCPUInfo]]:
    """Return NUMA nodes and their CPUs, of which each rank of the engine takes one.

    Args:
        nodes: that the engine may use; where they are enough, nothing changes.
        cpus: the logical CPUs that it may run on.
        manager: knows how many ranks the engine has on this machine, and which of the machine's
            engines it is: all ranks of all of them get the same number of physical cores. Where
            there are more ranks than cores, several have the same one.
    """
    ranks = manager.local_world_size
    if manager.simulate_multi_node or ranks <= len(nodes):
        return nodes, cpus
    engine = manager.local_dp_rank or 0
    # An engine does not know how many others there are, but how many processes the server has,
    # which is the same number unless it is chosen.
    parts = ranks * max(manager.internal_dp_size, engine + 1)
    cores = physical_cores([cpu for cpu in cpus if cpu.numa_node in nodes] or cpus)
    shares = equal_shares(cores, parts)[engine * ranks :][:ranks]
    share = f"{len(cores) // parts} for each rank"
    logger.info(
        "%d ranks and fewer NUMA nodes (%s): physical cores are split, %s. "
        "VLLM_CPU_OMP_THREADS_BIND chooses others.",
        parts,
        ", ".join(map(str, nodes)),
        share if parts <= len(cores) else f"one for several ranks ({len(cores)} in all)",
    )
    return list(range(ranks)), [
        replace(cpu, numa_node=rank)
        for rank, share in enumerate(shares)
        for core in share
        for cpu in core
    ]


def physical_cores(cpus: Sequence[LogicalCPUInfo]) -> list[Core]:
    """Return the cores that `cpus` belong to, those of a NUMA node in succession."""
    cores: dict[tuple[int, int], Core] = {}
    for cpu in sorted(cpus, key=lambda one: (one.numa_node, one.id)):
        cores.setdefault((cpu.numa_node, cpu.physical_core), []).append(cpu)
    return list(cores.values())


def allowed_cores() -> list[int]:
    """Return the first logical CPU of each physical core that this process may run on."""
    return [core[0].id for core in physical_cores(cpu_resource_utils.get_allowed_cpu_list())]


def equal_shares(cores: list[Core], parts: int) -> list[list[Core]]:
    """Return `parts` lists of equally many cores, at least one; the last cores may be in none."""
    size = len(cores) // parts
    if size == 0:
        return [[cores[part % len(cores)]] for part in range(parts)]
    return [cores[part * size : (part + 1) * size] for part in range(parts)]


def ranks_of_a_node(nodes: Sequence[int], parallel: ParallelConfig) -> int:
    """Return how many ranks of an engine share one of `nodes` at most, which are what the engine
    may use of this machine.
    """
    return -(-parallel.local_world_size // max(len(nodes), 1))
