"""Prompts are multiplied together where, and only where, each has the bits that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from vllm.hf_layers.products.prompts_together import PromptsTogether
from vllm.hf_layers.products.row_counts import (
    ManyRows,
    RowCounts,
    counts_of_layout,
    sizes_together,
)
from vllm.hf_layers.products.single_row_products import cancelling_rows, layout_of
from vllm.hf_layers.step_rows import runs_of

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

    def has_single_rows(self, num_rows: int) -> bool:
        return num_rows not in self.others


def parts_of(starts: list[int], *known: Known, dtype: torch.dtype = torch.bfloat16) -> list[Any]:
    counts: Any = lambda has_bias: known  # noqa: E731
    return PromptsTogether(BY_ROW, WHOLE, counts).parts(runs_of(starts), False, dtype)


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
    starts = [0, 1, 2, 12, 80, 81, 141, 180, 1000, 1020, 1060]
    assert parts_of(starts, known) == [
        (BY_ROW, 0, 2),
        (WHOLE, 2, 80),
        (BY_ROW, 80, 81),
        (WHOLE, 81, 180),
        (WHOLE, 180, 1000),  # as fast alone
        (BY_ROW, 1000, 1060),
    ]
    assert known.asked == {10, 68, 78, 60, 39, 99}


def test_rows_of_float16() -> None:
    """PyTorch multiplies them one by one, where it does, in prompts as well."""
    known = Known(others=(30,))
    assert parts_of([0, 1, 2, 12, 22, 52], known, dtype=torch.float16) == [
        (BY_ROW, 0, 2),
        (BY_ROW, 2, 12),
        (BY_ROW, 12, 22),
        (WHOLE, 22, 52),
    ]
    assert parts_of([0, 10, 20, 21, 700], known, dtype=torch.float16) == [
        (BY_ROW, 0, 20),
        (BY_ROW, 20, 700),
    ]


def test_a_single_prompt_asks_nothing() -> None:
    known = Known()
    assert parts_of([0, 65, 66], known) == [(WHOLE, 0, 65), (BY_ROW, 65, 66)]
    assert not known.asked


def test_a_few_rows() -> None:
    """They are multiplied as single rows are, where that gives them the bits they have alone."""
    assert parts_of([0, 3, 4], Known()) == [(BY_ROW, 0, 3), (BY_ROW, 3, 4)]
    assert parts_of([0, 3, 4], Known([3])) == [(WHOLE, 0, 3), (BY_ROW, 3, 4)]
    assert parts_of([0, 3, 4], Known(), Known([3])) == [(WHOLE, 0, 3), (BY_ROW, 3, 4)]
    assert parts_of([0, 20, 64], Known()) == [(BY_ROW, 0, 64)]
    assert parts_of([0, 20, 65], Known()) == [(WHOLE, 0, 65)]


@pytest.mark.parametrize("other", [10, 58, 68])
def test_a_number_of_rows_in_another_order(other: int) -> None:
    """Of a prompt, or of all of them; for any of several weights."""
    separately = [
        (WHOLE if end - begin == other else BY_ROW, begin, end)
        for begin, end in ((0, 10), (10, 68))
    ]
    assert parts_of([0, 10, 68], Known([other])) == separately
    assert parts_of([0, 10, 68], Known(), Known([other])) == separately


def test_what_was_found_is_for_the_step() -> None:
    known = Known()
    counts: Any = lambda has_bias: [known] if has_bias else [Known([68])]  # noqa: E731
    ways = PromptsTogether(BY_ROW, WHOLE, counts)
    runs = runs_of([0, 10, 68])
    assert ways.parts(runs, True, torch.bfloat16) is ways.parts(runs, True, torch.bfloat16)
    assert len(ways.parts(runs, False, torch.bfloat16)) == 2
    assert len(ways.parts(runs_of([0, 10, 68, 69]), True, torch.bfloat16)) == 2


@pytest.mark.parametrize("width", [255, 256])
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_a_product_that_adds_some_rows_in_another_order(
    has_bias: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As oneDNN adds a single row of 1,536 columns in blocks of 512, several in blocks of 1,024.

    A bias that does not cancel leaves nothing to see: 8 bits of a sum are kept.
    """
    weight = torch.empty(8, width, dtype=torch.bfloat16)
    counts = RowCounts(layout_of(weight), has_bias, torch.nn.Linear)
    known = linear

    def other_order(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        if len(x) != 40:
            return known(x, weight, bias)
        first, second = x.float().split(128, dim=1), weight.float().split(128, dim=1)
        sums = first[1] @ second[1].T + first[0] @ second[0].T
        return (sums if bias is None else sums + bias.float()).to(x.dtype)

    monkeypatch.setattr(torch.nn.functional, "linear", other_order)
    assert not counts.has_the_order(40)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("width", "height"), [(256, 704), (576, 192), (1536, 576), (2048, 256)])
def test_prompts_have_the_bits_they_have_alone(width: int, height: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    weight = torch.randn(height, width, generator=generator).to(dtype)
    starts = [0, 5, 12, 76, 140, 141, 143, 400, 777]
    x = (torch.randn(starts[-1], width, generator=generator) * 5).to(dtype)
    counts = counts_of_layout(layout_of(weight), False, torch.nn.Linear)
    ways = PromptsTogether(linear, linear, lambda has_bias: [counts])
    parts = ways.parts(runs_of(starts), False, dtype)
    found = torch.cat([multiply(x[begin:end], weight, None) for multiply, begin, end in parts])
    alone = torch.cat([linear(x[begin:end], weight) for begin, end in pairwise(starts)])
    assert torch.equal(found, alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("width", "height"), [(256, 704), (576, 192), (1536, 576), (2048, 256)])
def test_single_rows_have_the_bits_they_have_alone(
    width: int, height: int, dtype: torch.dtype
) -> None:
    """Together where the trial says so, and one by one elsewhere, as oneDNN's 1,536 columns."""
    generator = torch.Generator().manual_seed(width)
    weight = torch.randn(height, width, generator=generator).to(dtype)
    x = (torch.randn(150, width, generator=generator) * 5).to(dtype)
    asked: list[int] = []

    def by_row(x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        asked.append(len(x))
        return torch.cat([linear(row[None], weight, bias)[0] for row in x.split(1)])

    counts = counts_of_layout(layout_of(weight), False, torch.nn.Linear)
    product = ManyRows(by_row, linear, lambda has_bias: counts)
    for n in (1, 64, 65, 128, 150):
        asked.clear()
        found = product(x[:n], weight, None)
        has_bits = all(map(counts.has_single_rows, sizes_together(n)))
        are_together = n > 64 and dtype != torch.float16 and has_bits
        assert asked == ([] if are_together else [n])
        assert torch.equal(found, by_row(x[:n], weight, None))


@pytest.mark.parametrize("kind", [torch.nn.Linear, Conv1D])
@pytest.mark.parametrize("width", [1, 2, 7, 8])
def test_products_with_a_bias_cancel(width: int, kind: Any) -> None:
    layer = Conv1D(2000, width) if kind is Conv1D else torch.nn.Linear(width, 2000)
    probe, rows = cancelling_rows(layer)
    by_output = probe.weight.T if kind is Conv1D else probe.weight
    products = rows[:, 0].double() @ by_output.T.double() + probe.bias.double()
    assert (probe.bias != 0).all()
    assert products.abs().max() < 1e-9


def test_another_number_of_threads_is_tried_anew() -> None:
    layout = layout_of(torch.empty(64, 256, dtype=torch.bfloat16))
    before, found = torch.get_num_threads(), []
    for num_threads in (1, 2, 1):
        torch.set_num_threads(num_threads)
        found.append(counts_of_layout(layout, False, torch.nn.Linear))
    torch.set_num_threads(before)
    assert found[0] is not found[1]
    assert found[0] is found[2]


def test_a_weight_that_is_too_large_to_be_tried() -> None:
    layout = (torch.Size((1 << 14, 1 << 14)), (1 << 14, 1), torch.bfloat16, torch.device("cpu"), 0)
    counts = RowCounts(layout, False, torch.nn.Linear)
    assert not counts.has_the_order(32)
    assert not counts.has_single_rows(32)


def test_parts_of_a_fused_weight() -> None:
    """What is known of the whole is whether its products are those of the parts."""
    weight = torch.empty(320, 256, dtype=torch.bfloat16)
    whole = RowCounts(layout_of(weight), True, torch.nn.Linear, (256, 64))
    few = whole._probe(whole._rows)
    assert whole.has_the_order(32) == torch.equal(few, whole._products)
    parts = [
        linear(whole._rows, part, bias)
        for part, bias in zip(
            whole._probe.weight.split((256, 64)), whole._probe.bias.split((256, 64)), strict=True
        )
    ]
    assert torch.equal(whole._products, torch.cat(parts, dim=-1))
