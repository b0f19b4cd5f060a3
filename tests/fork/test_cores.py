"""Cores and memory of ranks that share NUMA nodes, by vLLM's own choice of an engine's cores."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vllm.fork.processes import cores
from vllm.fork.startup import cpu_memory
from vllm.fork.startup.cpu_memory import fitting_cpu_memory, fitting_kv_cache
from vllm.utils import cpu_resource_utils
from vllm.utils.cpu_resource_utils import LogicalCPUInfo, MemoryNodeInfo
from vllm.utils.ompmultiprocessing import OMPProcessManager

GIB = 1 << 30
Machine = Callable[..., None]


def config_of(ranks: int, engines: int = 1, engine: int | None = None, **cache: object) -> Any:
    """Return what an engine of data parallelism knows in its own process."""
    parallel = SimpleNamespace(
        local_world_size=ranks,
        data_parallel_rank_local=engine,
        _api_process_count=engines,
    )
    sizes = {"gpu_memory_utilization": 0.92, "kv_cache_memory_bytes": None, **cache}
    return SimpleNamespace(
        parallel_config=parallel, kv_transfer_config=None, cache_config=SimpleNamespace(**sizes)
    )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Returns what gives this process so many NUMA nodes, with so many cores in each."""

    def make(nodes: int, size: int, threads: int = 1) -> None:
        all_cores = nodes * size
        cpus = [
            LogicalCPUInfo(id=thread * all_cores + core, physical_core=core, numa_node=core // size)
            for thread in range(threads)
            for core in range(all_cores)
        ]
        monkeypatch.setattr(cpu_resource_utils, "get_allowed_cpu_list", lambda: cpus)
        for module in (cpu_resource_utils, cpu_memory):
            monkeypatch.setattr(module, "get_visible_memory_node", lambda: list(range(nodes)))
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "auto")
        monkeypatch.delenv("VLLM_CPU_SIM_MULTI_NUMA", raising=False)

    return make


@pytest.mark.parametrize(
    ("shape", "ranks", "expected"),
    [
        pytest.param((1, 2), 2, [[0], [1]], id="a core for each rank"),
        pytest.param((1, 1), 2, [[0], [0]], id="more ranks than cores"),
        pytest.param((1, 3), 5, [[0], [1], [2], [0], [1]], id="more ranks than three cores"),
        pytest.param((1, 3), 2, [[0], [1]], id="equal shares: the last core is nobody's"),
        pytest.param((1, 8), 2, [[0, 1, 2], [4, 5, 6]], id="vLLM reserves a core for each rank"),
        pytest.param((2, 8), 4, [[0, 1, 2], [4, 5, 6], [8, 9, 10], [12, 13, 14]], id="two nodes"),
        pytest.param((1, 4, 2), 2, [[4], [6]], id="one logical CPU of each physical core"),
        pytest.param((2, 4), 2, [[0, 1, 2], [4, 5, 6]], id="enough nodes: as upstream"),
        pytest.param((2, 4), 1, [[0, 1, 2]], id="one rank: as upstream"),
    ],
)
def test_cores_of_ranks(
    shape: tuple[int, ...], ranks: int, expected: list[list[int]], machine: Machine
) -> None:
    machine(*shape)
    assert OMPProcessManager(config_of(ranks)).cpu_lists == expected


def test_engines_of_data_parallelism_have_cores_of_their_own(machine: Machine) -> None:
    machine(1, 8)
    lists = [OMPProcessManager(config_of(2, 2, engine)).cpu_lists for engine in range(2)]
    assert lists == [[[0], [2]], [[4], [6]]]


@pytest.mark.parametrize(
    ("shape", "share"), [((1, 8), "4 for each rank"), ((1, 1), "one for several ranks (1 in all)")]
)
def test_it_says_so(
    shape: tuple[int, int], share: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(*shape)
    said: list[str] = []
    monkeypatch.setattr(cores.logger, "info", lambda text, *values: said.append(text % values))
    OMPProcessManager(config_of(2))
    assert said == [
        f"2 ranks and fewer NUMA nodes (0): physical cores are split, {share}. "
        "VLLM_CPU_OMP_THREADS_BIND chooses others."
    ]


@pytest.mark.parametrize(
    ("available", "cache", "expected"),
    [
        pytest.param(100, {}, 46, id="the default, if it can be had"),
        pytest.param(50, {}, 23, id="the default of what is available"),
        pytest.param(50, {"gpu_memory_utilization": 0.5}, 92, id="a chosen fraction"),
        pytest.param(50, {"kv_cache_memory_bytes": GIB}, 92, id="a chosen size"),
    ],
)
def test_ranks_share_the_memory_of_a_node(
    available: int, cache: dict[str, Any], expected: int, machine: Machine
) -> None:
    machine(1, 2)
    memory = MemoryNodeInfo(total_memory=100 * GIB, available_memory=available * GIB)
    config = config_of(2, **cache)
    assert fitting_cpu_memory(92 * GIB, memory, config) == expected * GIB
    machine(2, 1)
    of_two_nodes = {23: 46, 46: 92, 92: 92}[expected]
    assert fitting_cpu_memory(92 * GIB, memory, config) == of_two_nodes * GIB


@pytest.mark.parametrize(
    ("available", "cache", "expected"),
    [
        pytest.param(100, {}, 20, id="it is still there"),
        pytest.param(25, {}, 11.5, id="others have taken some of it"),
        pytest.param(25, {"gpu_memory_utilization": 0.5}, 20, id="a chosen fraction"),
    ],
)
def test_the_kv_cache_takes_what_is_left(
    available: int, cache: dict[str, Any], expected: float, machine: Machine
) -> None:
    machine(1, 2)
    memory = MemoryNodeInfo(total_memory=100 * GIB, available_memory=available * GIB)
    assert fitting_kv_cache(20 * GIB, memory, config_of(2, **cache)) == expected * GIB


def test_one_logical_cpu_of_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = [
        LogicalCPUInfo(id=i, physical_core=core, numa_node=node)
        for i, core, node in [(6, 0, 0), (2, 0, 0), (3, 1, 0), (7, 1, 0), (9, 0, 1)]
    ]
    monkeypatch.setattr(cpu_resource_utils, "get_allowed_cpu_list", lambda: cpus)
    assert cores.allowed_cores() == [2, 3, 9]
