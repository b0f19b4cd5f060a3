"""The threads of exact mode's model: as many as PyTorch has."""

import os

import pytest

from vllm.fork.processes.cores import THREADS_BIND
from vllm.hf_layers.engine.executor import cores_of_pytorch, threads_bind


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


@pytest.mark.parametrize(("engine", "expected"), [(0, "5,6"), (1, "5,6|5,6")])
def test_engines_that_share_a_machine(
    engine: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes the list of its number (``OMPProcessManager`` of vLLM), with PyTorch's threads."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    monkeypatch.setattr("vllm.hf_layers.engine.executor.allowed_cores", lambda: [5, 6, 7])
    monkeypatch.delenv(THREADS_BIND, raising=False)
    with cores_of_pytorch(engine):
        assert os.environ[THREADS_BIND] == expected
    assert THREADS_BIND not in os.environ
