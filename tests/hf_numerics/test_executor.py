"""The threads of exact mode's model: as many as PyTorch has."""

import pytest

from vllm.hf_numerics.executor import physical_cores, threads_bind


@pytest.mark.parametrize(
    ("num_threads", "cores", "expected"),
    [
        (1, [0], "0"),
        (2, [0, 1], "0,1"),
        (3, [0, 2, 4, 6], "0,2,4"),
        (4, [1, 3], "nobind"),
        (1, [], "nobind"),
    ],
)
def test_threads_bind(num_threads: int, cores: list[int], expected: str) -> None:
    assert threads_bind(num_threads, cores) == expected


def test_one_logical_cpu_of_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.utils import cpu_resource_utils
    from vllm.utils.cpu_resource_utils import LogicalCPUInfo

    cpus = [
        LogicalCPUInfo(id=i, physical_core=core, numa_node=node)
        for i, core, node in [(6, 0, 0), (2, 0, 0), (3, 1, 0), (7, 1, 0), (9, 0, 1)]
    ]
    monkeypatch.setattr(cpu_resource_utils, "get_allowed_cpu_list", lambda: cpus)
    assert physical_cores() == [2, 3, 9]
