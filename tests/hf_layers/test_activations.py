"""Activations of a step's rows have the bits that each request has alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from vllm.hf_layers.layers import activations
from vllm.hf_layers.step_rows import runs_of

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}
STARTS = [0, 61, *range(62, 180), 251]
"""Prompts of 61 and 72 tokens, and single tokens between them."""


def numbers(size: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return (torch.randn(STARTS[-1], size, generator=generator) * 3).to(dtype)


def alone(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Each request in a tensor of its own, as in `generate()`."""
    pairs = pairwise(STARTS)
    return torch.cat([function(x[begin:end].clone()) for begin, end in pairs])


@pytest.mark.parametrize("size", [320, 336, 1000, 4096])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_of_a_step(
    name: str, dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "step_runs", lambda _: runs_of(STARTS))
    x = numbers(size, dtype)
    found = activations.by_request(FUNCTIONS[name], x)
    assert torch.equal(found, alone(FUNCTIONS[name], x))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [64, 1536, 1600, 40000])
def test_parts_have_all_rows_and_no_remainder(
    size: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(activations, "step_runs", lambda _: runs_of(STARTS))
    parts = list(activations.parts(STARTS[-1], size))
    assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == STARTS[-1]
    alone = set(pairwise(STARTS))
    for begin, end in set(parts) - alone:
        assert activations.is_all_vectors(end - begin, size, threads)
    if size == 1536 and threads < 3:
        assert parts == [(0, STARTS[-1])]


def test_rows_together_would_have_other_bits() -> None:
    """So that the test above can fail; how many differ depends on the CPU."""
    differing = sum(
        int((function(numbers(size, dtype)) != alone(function, numbers(size, dtype))).sum())
        for function in FUNCTIONS.values()
        for dtype in (torch.bfloat16, torch.float16)
        for size in (320, 336, 1000)
    )
    assert differing
