"""Prompts are multiplied together where, and only where, each has the bits that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from vllm.hf_numerics import prompts_together
from vllm.hf_numerics.prompts_together import PromptsTogether, RowCounts, sizes_together
from vllm.hf_numerics.requests import runs_of

BY_ROW: Any = "by row"
WHOLE: Any = "whole"


class Known:
    """Counts of rows of which it is known whether they have the order."""

    def __init__(self, others: Sequence[int] = ()) -> None:
        self.others = others
        self.asked: set[int] = set()

    def has_the_order(self, num_rows: int) -> bool:
        self.asked.add(num_rows)
        return num_rows not in self.others


def parts_of(starts: list[int], *known: Known) -> list[Any]:
    counts: Any = lambda has_bias: known  # noqa: E731
    return PromptsTogether(BY_ROW, WHOLE, counts).parts(runs_of(starts), False)


@pytest.mark.parametrize(
    ("num_rows", "sizes"),
    [
        *((2, [2]), (63, [63]), (64, [64]), (65, [65]), (127, [127]), (128, [128])),
        *((129, [64, 65]), (200, [128, 72]), (2048, [2048]), (2050, [2048, 2])),
        *((1357, [1280, 77]), (6144, [2048, 2048, 2048]), (4200, [2048, 2048, 104])),
    ],
)
def test_sizes(num_rows: int, sizes: list[int]) -> None:
    assert sizes_together(num_rows) == sizes
    assert sum(sizes) == num_rows


def test_there_are_few_numbers_of_rows_to_find_out_about() -> None:
    sizes = {size for n in range(2, 10000) for size in sizes_together(n)}
    assert len(sizes) < 200


def test_a_step_is_taken_apart() -> None:
    known = Known()
    starts = [0, 1, 2, 12, 40, 41, 61, 100, 1000, 1020, 1030]
    assert parts_of(starts, known) == [
        (BY_ROW, 0, 2),
        (WHOLE, 2, 40),
        (BY_ROW, 40, 41),
        (WHOLE, 41, 100),
        (WHOLE, 100, 1000),  # as fast alone
        (WHOLE, 1000, 1030),
    ]
    assert known.asked == {10, 28, 38, 20, 39, 59, 30}


def test_a_single_prompt_asks_nothing() -> None:
    known = Known()
    assert parts_of([0, 3, 4], known) == [(WHOLE, 0, 3), (BY_ROW, 3, 4)]
    assert not known.asked


@pytest.mark.parametrize("other", [10, 28, 38])
def test_a_number_of_rows_in_another_order(other: int) -> None:
    """Of a prompt, or of all of them; for any of several weights."""
    separately = [(WHOLE, 0, 10), (WHOLE, 10, 38)]
    assert parts_of([0, 10, 38], Known([other])) == separately
    assert parts_of([0, 10, 38], Known(), Known([other])) == separately


def test_what_was_found_is_for_the_step() -> None:
    known = Known()
    counts: Any = lambda has_bias: [known] if has_bias else [Known([38])]  # noqa: E731
    ways = PromptsTogether(BY_ROW, WHOLE, counts)
    runs = runs_of([0, 10, 38])
    assert ways.parts(runs, True) is ways.parts(runs, True)
    assert len(ways.parts(runs, False)) == 2
    assert len(ways.parts(runs_of([0, 10, 38, 39]), True)) == 2


def test_a_product_that_adds_some_rows_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """As oneDNN adds a single row of 1,536 columns in blocks of 512, several in blocks of 1,024."""
    weight = torch.empty(64, 256, dtype=torch.bfloat16)
    layout = (weight.shape, weight.stride(), weight.dtype, weight.device)
    counts = RowCounts(layout, False, torch.nn.Linear)
    known = linear

    def other_order(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        if len(x) != 40:
            return known(x, weight, bias)
        halves = [
            x[:, part].float() @ weight[:, part].float().T for part in (slice(128, 256), slice(128))
        ]
        return sum(halves).to(x.dtype)

    monkeypatch.setattr(torch.nn.functional, "linear", other_order)
    assert not counts.has_the_order(40)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("width", "height"), [(256, 704), (576, 192), (1536, 576), (2048, 256)])
def test_prompts_have_the_bits_they_have_alone(width: int, height: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    weight = torch.randn(height, width, generator=generator).to(dtype)
    starts = [0, 5, 12, 76, 140, 141, 143, 400, 777]
    x = (torch.randn(starts[-1], width, generator=generator) * 5).to(dtype)
    layout = (weight.shape, weight.stride(), weight.dtype, weight.device)
    counts = prompts_together.counts_of_layout(layout, False, torch.nn.Linear)
    ways = PromptsTogether(linear, linear, lambda has_bias: [counts])
    parts = ways.parts(runs_of(starts), False)
    found = torch.cat([multiply(x[begin:end], weight, None) for multiply, begin, end in parts])
    alone = torch.cat([linear(x[begin:end], weight) for begin, end in pairwise(starts)])
    assert torch.equal(found, alone)
