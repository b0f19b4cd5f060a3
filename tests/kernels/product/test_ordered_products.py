"""``ordered_products`` adds in the order that it is given, whatever that is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.instruction_sets import NEEDS_AVX512
from vllm.fork_kernels.torch_order.ordered_products import Range, Step, SumOrder, ordered_products

pytestmark = NEEDS_AVX512
COLUMNS = 53
SEQUENCE = (Step(0, 0, 1, COLUMNS),)
LANES = (
    Step(0, 0, 1, 2),
    Step(0, 5, 4, 12),
    Step(1, 3, 4, 12),
    Step(0, 1, 0, 0),
    Step(1, 2, 4, 12),
    Step(2, 4, 4, 12),
    Step(1, 2, 0, 0),
    Step(0, 1, 0, 0),
    Step(0, 50, 1, 3),
)
BIAS = Step(0, 0, 0, -1)
ORDERS = (SEQUENCE, LANES, (*LANES, BIAS), (BIAS, *SEQUENCE))


def spelt_out(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, order: SumOrder
) -> torch.Tensor:
    """The same in float64, rounded to float32 where the order says so."""
    columns = []
    begin = 0
    for end, begins_anew, steps in order.ranges:
        own = weight[begin:end].double()
        zero = torch.full((len(x), end - begin), -0.0 if begins_anew else 0.0)
        sums = dict.fromkeys(range(8), zero)
        for number, first, stride, count, is_fused in steps:
            for k in range(first, first + stride * count, stride or 1):
                product = x[:, k, None].double() * own[:, k]
                product = product if is_fused else product.float().double()
                sums[number] = (sums[number].double() + product).float()
            if count == 0:
                sums[number] = sums[number] + sums[first]
                sums[first] = zero
            elif count < 0:
                assert bias is not None
                sums[number] = sums[number] + bias[begin:end]
        columns.append(sums[0])
        begin = end
    return torch.cat(columns, 1)


def numbers(*shape: int, seed: int) -> torch.Tensor:
    """Numbers of 20 bits, so that a product and what it is added to fit float64 nearly always."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.exp2(
        torch.randint(-4, 5, shape, generator=generator)
    )
    return (x.view(torch.int32) & -16).view(torch.float32)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def fused(steps: tuple[Step, ...], is_fused: bool = True) -> tuple[Step, ...]:
    return tuple(step._replace(is_fused=is_fused) for step in steps)


@pytest.mark.parametrize("num_rows", [1, 15, 16, 33, 50])
@pytest.mark.parametrize("steps", ORDERS)
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("begins_anew", [False, True])
def test_bits(num_rows: int, steps: tuple[Step, ...], is_fused: bool, begins_anew: bool) -> None:
    x, weight = numbers(num_rows, COLUMNS, seed=0), numbers(45, COLUMNS, seed=1)
    x[-1] = -0.0
    bias = numbers(45, seed=2) if BIAS in steps else None
    order = SumOrder((Range(45, begins_anew, fused(steps, is_fused)),))
    assert same(ordered_products(x, weight, bias, order), spelt_out(x, weight, bias, order))


def test_ranges_and_strides() -> None:
    x, weight = numbers(20, COLUMNS, seed=0), numbers(COLUMNS, 70, seed=1).T
    ranges = (
        Range(1, False, fused(LANES)),
        Range(40, False, SEQUENCE),
        Range(41, True, (*LANES[:3], *fused(LANES[3:]))),
        Range(70, True, fused(SEQUENCE)),
    )
    order = SumOrder(ranges)
    assert same(ordered_products(x, weight, None, order), spelt_out(x, weight, None, order))


def test_orders_differ() -> None:
    """The tests above would pass one order in place of another if all added alike."""
    x, weight = numbers(20, COLUMNS, seed=0), numbers(45, COLUMNS, seed=1)
    found = [
        ordered_products(x, weight, None, SumOrder((Range(45, False, fused(steps, is_fused)),)))
        for is_fused in (False, True)
        for steps in (SEQUENCE, LANES)
    ]
    for i, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[i + 1 :])


def test_no_rows() -> None:
    order = SumOrder((Range(8, False, SEQUENCE),))
    found = ordered_products(torch.zeros(0, COLUMNS), torch.zeros(8, COLUMNS), None, order)
    assert found.shape == (0, 8)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, w, b, o: (x.half(), w, b, o), "x must have dtype float32, but has float16"),
        (lambda x, w, b, o: (x, w.double(), b, o), "weight must have dtype float32"),
        (lambda x, w, b, o: (x[0], w, b, o), r"x must have 2 dimension\(s\), but has 1"),
        (lambda x, w, b, o: (x[:, :9].contiguous(), w, b, o), "weight must have 9 columns"),
        (lambda x, w, b, o: (x, w, b[:3], o), "bias must have one entry for each of the 8 rows"),
        (lambda x, w, b, o: (x, w, b, o[:1]), "row 0 of order begins no range of outputs"),
        (lambda x, w, b, o: (x, w, b, o[1:]), "row 0 of order begins no range of outputs"),
        (lambda x, w, b, o: (x, w, b, o[:, :3].contiguous()), "order must have 5 columns"),
        (lambda x, w, b, o: (x, w, b, o.long()), "order must have dtype int32"),
        (lambda x, w, b, o: (x, w[:7], None, o), "order ends at 8, but 7 outputs are meant"),
        (lambda x, w, b, o: (x, w, b, with_step(o, 0, 1, 1, 53)), "row 1 of order is no step"),
        (lambda x, w, b, o: (x, w, b, with_step(o, 0, -1, 1, 5)), "row 1 of order is no step"),
        (lambda x, w, b, o: (x, w, b, with_step(o, 0, 0, 0, 5)), "row 1 of order is no step"),
        (lambda x, w, b, o: (x, w, b, with_step(o, 32, 0, 1, 5)), "row 1 of order is no step"),
        (lambda x, w, b, o: (x, w, b, with_step(o, 0, 32, 0, 0)), "row 1 of order is no step"),
        (lambda x, w, b, o: (x, w, None, with_step(o, 0, 0, 0, -1)), "row 1 of order is no step"),
    ],
)
def test_argument_errors(change: Callable[..., Any], sentence: str) -> None:
    x, weight, bias = (torch.zeros(s) for s in ((4, COLUMNS), (8, COLUMNS), (8,)))
    order = SumOrder((Range(8, False, SEQUENCE),)).tensor
    with pytest.raises(RuntimeError, match=f"^ordered_products: .*{sentence}"):
        torch.ops.vllm_fork.ordered_products(*change(x, weight, bias, order))


def with_step(order: torch.Tensor, *step: int) -> torch.Tensor:
    return torch.cat([order[:1], torch.tensor([(*step, 0)], dtype=torch.int32)])
