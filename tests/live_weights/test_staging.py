"""What is packed is what loaders have written, whether it was copied or read where it lay."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.kernels.portable_cases import assert_same
from vllm.fork.live_weights.packed import PackedParameter
from vllm.fork.live_weights.staging import StagedParameter

SIZES = [4, 4, 2, 2]
SHAPE = (sum(SIZES), 3)
Loader = Callable[[Any], None]


def form() -> torch.Tensor:
    return nn.Parameter(torch.empty(SHAPE, device="meta"), requires_grad=False)


def staged(pack: Callable[[int, torch.Tensor], None]) -> StagedParameter:
    packed = PackedParameter(is_read=False, sizes=SIZES)
    return StagedParameter(form(), torch.device("cpu"), packed, pack)


def copies(source: torch.Tensor, first: int, last: int) -> Loader:
    return lambda param: param.data[first:last].copy_(source[first:last])


def write_all(param: Any, chosen: list[Loader]) -> None:
    for load in chosen:
        load(param)


def loaders(generator: random.Random, source: torch.Tensor) -> list[Loader]:
    """One write or several: whole parts, some rows, columns, float64, what changes them again."""
    ends = [0, 4, 8, 10, 12]
    part = generator.randrange(4)
    first, last = ends[part], ends[part + 1]
    row = generator.randrange(12)
    whole = copies(source, first, last)
    mutable = source.clone()

    def from_what_changes(param: Any) -> None:
        param.data[first:last].copy_(mutable[first:last])
        mutable.fill_(7)

    def twice(param: Any) -> None:
        whole(param)
        param.data[first] *= 2

    return generator.choice(
        [
            [whole],
            [whole, copies(source, 4, 8)],
            [whole, lambda param: param.data[12:].fill_(0)],
            [copies(source, 0, 12)],
            [copies(source, row, row + 1)],
            [copies(source, first, first + 1), copies(source, first + 1, last)],
            [lambda param: param.data[:, 1:].copy_(source[:, 1:])],
            [lambda param: param.data[first:last].copy_(source[first:last].double())],
            [from_what_changes],
            [twice],
            [whole, lambda param: param.data[row].fill_(5)],
        ]
    )


@pytest.mark.parametrize("seed", range(40))
def test_parts_have_what_was_written(seed: int) -> None:
    generator = random.Random(seed)
    expected = torch.full(SHAPE, torch.nan)
    packed: list[int] = []

    def pack(part: int, rows: torch.Tensor) -> None:
        packed.append(part)
        assert_same(rows, expected.split(SIZES)[part])

    parameter = staged(pack)
    for _ in range(60):
        source, state = torch.randn(SHAPE), generator.getstate()
        plain = nn.Parameter(expected, requires_grad=False)
        write_all(plain, loaders(generator, source.clone()))
        generator.setstate(state)
        before = len(packed)
        _, _, is_changed = parameter.load(write_all, loaders(generator, source))
        assert is_changed == (len(packed) > before)
    assert set(packed) == {0, 1, 2, 3}
    expected.copy_(torch.ones(SHAPE))
    before = len(packed)
    parameter.load(lambda param: param.data.copy_(torch.ones(SHAPE)))
    assert packed[before:] == [0, 1, 2, 3]
    assert not parameter.is_incomplete


def test_whole_parts_are_read_where_they_are() -> None:
    found: list[tuple[int, int]] = []
    parameter = staged(lambda part, rows: found.append((part, rows.data_ptr())))
    source = torch.randn(SHAPE)
    for first, last in [(4, 8), (10, 12)]:
        parameter.load(copies(source, first, last))
    assert found == [(1, source[4:].data_ptr()), (3, source[10:].data_ptr())]
