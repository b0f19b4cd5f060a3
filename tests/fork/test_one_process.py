"""Where an engine's model runs, and with how many threads."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from tests.engines import MODEL
from vllm.engine.arg_utils import EngineArgs
from vllm.fork.processes import one_process
from vllm.fork.processes.one_process_executor import OneProcessExecutor
from vllm.hf_layers.engine.engine_args import EXECUTOR, ONE_PROCESS
from vllm.hf_layers.engine.executor import HFOneProcessExecutor
from vllm.utils import cpu_resource_utils
from vllm.utils.cpu_resource_utils import LogicalCPUInfo
from vllm.v1.executor.uniproc_executor import UniProcExecutor


@pytest.mark.parametrize(
    ("arguments", "backend"),
    [
        ({"deterministic": True}, one_process.EXECUTOR),
        ({"hf_compat": True, "dtype": "float32"}, one_process.EXECUTOR),
        ({"hf_compat": True}, ONE_PROCESS),
        ({"hf_compat": "exact"}, ONE_PROCESS),
        ({"deterministic": True, "distributed_executor_backend": "uni"}, one_process.EXECUTOR),
        ({}, "mp"),
        ({"split_qkv": True}, "mp"),
        ({"deterministic": True, "distributed_executor_backend": "mp"}, "mp"),
        ({"hf_compat": "exact", "distributed_executor_backend": "mp"}, EXECUTOR),
        ({"deterministic": True, "tensor_parallel_size": 2}, "mp"),
    ],
)
def test_the_executor(arguments: dict[str, Any], backend: str) -> None:
    args = EngineArgs(**{"model": str(MODEL), "dtype": "bfloat16", **arguments})
    config = args.create_engine_config()
    assert config.parallel_config.distributed_executor_backend == backend


@pytest.mark.parametrize("flags", [{"deterministic": True}, {"hf_compat": True}])
def test_arguments_of_another_engine(flags: dict[str, Any]) -> None:
    """The executor is chosen for each engine, not for all that have the same object."""
    args = EngineArgs(model=str(MODEL), dtype="bfloat16", **flags)
    first = args.create_engine_config().parallel_config
    args.tensor_parallel_size = 2
    second = args.create_engine_config().parallel_config
    assert first.distributed_executor_backend in (one_process.EXECUTOR, ONE_PROCESS)
    assert second.distributed_executor_backend in ("mp", EXECUTOR)


def test_threads_chosen_by_hand_have_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")
    config = EngineArgs(str(MODEL), deterministic=True).create_engine_config()
    assert config.parallel_config.distributed_executor_backend == "mp"


@pytest.fixture
def num_cores() -> int:
    return 5


@pytest.fixture
def chosen(num_cores: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What an executor chooses on a machine of some cores with two logical CPUs each."""
    cpus = [
        LogicalCPUInfo(id=i, physical_core=i % num_cores, numa_node=0) for i in range(2 * num_cores)
    ]
    seen: dict[str, Any] = {"threads": num_cores}
    monkeypatch.setattr(cpu_resource_utils, "get_allowed_cpu_list", lambda: cpus)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: seen.update(threads=count))
    monkeypatch.setattr(torch, "get_num_threads", lambda: seen["threads"])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: seen.update(cores=cores))
    monkeypatch.setattr(UniProcExecutor, "_init_executor", lambda _: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # so that it is put back as it was
    monkeypatch.delenv("OMP_NUM_THREADS")
    return seen


@pytest.mark.parametrize(
    ("executor", "num_cores", "given", "threads"),
    [
        (OneProcessExecutor, 5, None, 4),
        (OneProcessExecutor, 5, 3, 3),
        (OneProcessExecutor, 4, None, 4),
        (OneProcessExecutor, 1, None, 1),
        (HFOneProcessExecutor, 5, None, 5),
    ],
)
def test_threads_are_on_physical_cores(
    executor: type[OneProcessExecutor],
    num_cores: int,
    given: int | None,
    threads: int,
    chosen: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", str(given))
        chosen["threads"] = given  # PyTorch has read the variable
    executor._init_executor(executor.__new__(executor))
    assert chosen == {"threads": threads, "cores": list(range(num_cores))}


def test_more_threads_than_cores_are_not_bound(
    chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen["threads"] = 6
    executor = HFOneProcessExecutor.__new__(HFOneProcessExecutor)
    executor._init_executor()
    assert chosen == {"threads": 6}
