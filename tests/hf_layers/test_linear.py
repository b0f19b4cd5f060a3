"""In 16 bits a step's products are taken apart as Hugging Face computes its requests."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from vllm.hf_layers.layers import linear
from vllm.hf_layers.layers.linear import HFConv1DMethod, LinearByRequest, side_by_side
from vllm.hf_layers.products.row_counts import FEW, counts_of_layout
from vllm.hf_layers.products.single_row_products import RowPlan, layout_of
from vllm.hf_layers.step_rows import runs_of

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([0, 5], [(False, 0, 5)]),
        ([0, 1, 2, 3], [(True, 0, 3)]),
        ([0, 1, 2, 9, 12, 13], [(True, 0, 2), (False, 2, 9), (False, 9, 12), (True, 12, 13)]),
        ([0, 0, 1, 1, 4, 4], [(True, 0, 1), (False, 1, 4)]),  # requests without tokens
        ([0, 1], [(True, 0, 1)]),
    ],
)
def test_runs(starts: list[int], expected: list[tuple[bool, int, int]]) -> None:
    assert runs_of(starts) == tuple(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_each_request_gets_the_bits_it_has_alone(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(1024, 512, generator=generator).to(dtype)
    bias = torch.randn(1024, generator=generator).to(dtype)
    starts = [0, *range(1, 41), 57, 123]
    x = torch.randn(starts[-1], 512, generator=generator).to(dtype)
    monkeypatch.setattr(linear, "step_runs", lambda num_rows: runs_of(starts))
    layer = SimpleNamespace(weight=torch.nn.Parameter(weight, False), bias=bias)
    rows: list[int] = []

    def whole(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows.append(len(x))
        return functional.linear(x, weight, bias)

    ways = linear.together(linear.rows_apart(layer), whole, [weight])
    ours = LinearByRequest(ways)(x, weight, bias)
    counts = counts_of_layout(layout_of(weight), True, torch.nn.Linear)
    may_be_together = all(counts.has_the_order(n) for n in (17, 66, 83))
    if dtype == torch.float16 and all(counts.has_single_rows(n) for n in (17, 66)):
        assert rows == []
    else:
        separately = [66] if counts.has_single_rows(17) else [17, 66]
        assert rows == ([83] if may_be_together else separately)
    parts = [x[begin:end] for begin, end in pairwise(starts)]
    alone = torch.cat([functional.linear(part, weight, bias) for part in parts])
    assert torch.equal(ours, alone)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("width", [96, 512, 1536])
def test_parts_of_a_fused_weight_have_the_bits_they_have_alone(
    monkeypatch: pytest.MonkeyPatch, width: int, has_bias: bool
) -> None:
    """The rows of q, k and v are multiplied at once where one order has the bits of all three."""
    generator = torch.Generator().manual_seed(0)
    sizes = [256, 64, 64]
    weight = torch.randn(sum(sizes), width, generator=generator).bfloat16()
    bias = torch.randn(sum(sizes), generator=generator).bfloat16() if has_bias else None
    biases = [None] * len(sizes) if bias is None else list(bias.split(sizes))
    parts = [
        SimpleNamespace(weight=part, bias=part_bias)
        for part, part_bias in zip(weight.split(sizes), biases, strict=True)
    ]
    orders = {
        RowPlan.of_weight(part.weight, has).order for part in parts for has in (False, has_bias)
    }
    product = side_by_side(parts, sizes)
    assert (product is None) == (len(orders) != 1 or orders == {None})
    if product is None:
        return  # this CPU has no such order, and parts are multiplied one after the other
    starts = [0, *range(1, 41), 57, 123, 124]
    x = torch.randn(starts[-1], width, generator=generator).bfloat16()
    monkeypatch.setattr(linear, "step_runs", lambda num_rows: runs_of(starts))
    alone = [
        torch.cat([functional.linear(x[begin:end], part.weight, part.bias) for part in parts], -1)
        for begin, end in pairwise(starts)
    ]
    assert torch.equal(product(x, weight, bias), torch.cat(alone))


def test_parts_in_float32_are_multiplied_one_after_the_other() -> None:
    parts = [SimpleNamespace(weight=torch.ones(64, 64), bias=None)] * 2
    assert side_by_side(parts, [64, 64]) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("width", "height"), [(256, 768), (768, 256), (1024, 512)])
def test_a_layer_that_transformers_stores_the_other_way_round(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, width: int, height: int
) -> None:
    """GPT-2's layers, in which other kernels multiply."""
    generator = torch.Generator().manual_seed(0)
    theirs = Conv1D(height, width).to(dtype)
    theirs.weight.data = torch.randn(width, height, generator=generator).to(dtype)
    theirs.bias.data = torch.randn(height, generator=generator).to(dtype)
    layer = SimpleNamespace(weight=torch.nn.Parameter(theirs.weight.data.T.contiguous(), False))
    HFConv1DMethod().process_weights_after_loading(layer)
    starts = [0, *range(1, 41), 57, 123]
    x = torch.randn(starts[-1], width, generator=generator).to(dtype)
    monkeypatch.setattr(linear, "step_runs", lambda num_rows: runs_of(starts))
    ours = layer.cpu_linear(x, layer.weight, theirs.bias)
    alone = torch.cat([theirs(x[begin:end]) for begin, end in pairwise(starts)])
    assert torch.equal(ours, alone)


def test_rows_outside_of_a_step_are_one_matrix() -> None:
    """More of them than might have the bits of single rows on some CPU."""
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(s, generator=generator).bfloat16() for s in ((8, 64), (2, FEW, 64)))
    by_row: Any = None
    ways = linear.together(by_row, functional.linear, [weight])
    ours = LinearByRequest(ways)(x, weight, None)
    assert ours.shape == (2, FEW, 8)
    assert torch.equal(ours.flatten(0, 1), functional.linear(x.flatten(0, 1), weight))
