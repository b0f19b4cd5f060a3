"""Orders of addition are found by asking, and single rows have their bits in any number."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from tests.hf_layers.another_cpu import KINDS, library
from tests.instruction_sets import NEEDS_AVX512
from vllm.fork_kernels.torch_order.ordered_products import Step, SumOrder
from vllm.hf_layers.products.probe.row_order import by_output, order_of_rows
from vllm.hf_layers.products.probe.summation_order import NotFound, steps_of, tree_of
from vllm.hf_layers.products.single_row_products import (
    RowPlan,
    RowsApart,
    conv1d,
    layout_of,
    same_bits,
)

SIZE = 40


def one_by_one(terms: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(len(terms))
    for term in terms.T:
        total = total + term
    return total


def in_lanes(terms: torch.Tensor) -> torch.Tensor:
    """Eight sums, folded by halves, then what is left over."""
    whole = terms.shape[1] // 8 * 8
    lanes = terms[:, :whole].unflatten(1, (-1, 8)).transpose(1, 2)
    sums = torch.stack([one_by_one(lane) for lane in lanes.unbind(1)], 1)
    while sums.shape[1] > 1:
        sums = sums[:, : sums.shape[1] // 2] + sums[:, sums.shape[1] // 2 :]
    return sums[:, 0] + one_by_one(terms[:, whole:]) if whole < terms.shape[1] else sums[:, 0]


def by_halves(terms: torch.Tensor) -> torch.Tensor:
    if terms.shape[1] == 1:
        return terms[:, 0]
    half = terms.shape[1] // 2
    return by_halves(terms[:, :half]) + by_halves(terms[:, half:])


def asked(sum_of: Callable[[torch.Tensor], torch.Tensor], size: int) -> Any:
    """How `tree_of` asks a function that adds up rows."""

    def counts(pairs: torch.Tensor) -> torch.Tensor:
        terms = torch.ones(len(pairs), size)
        rows = torch.arange(len(pairs))
        terms[rows, pairs[:, 0]], terms[rows, pairs[:, 1]] = 2.0**60, -(2.0**60)
        return size - sum_of(terms).round().long()

    return counts


def unfused(pairs: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(pairs), dtype=torch.bool)


def gone_through(steps: list[Step], terms: torch.Tensor) -> torch.Tensor:
    sums: dict[int, Any] = {}
    for number, first, stride, count, _ in steps:
        for k in range(first, first + stride * count, stride or 1):
            sums[number] = sums[number] + terms[:, k] if number in sums else terms[:, k]
        if count == 0:
            added = sums.pop(first)
            sums[number] = sums[number] + added if number in sums else added
    found: torch.Tensor = sums.pop(0)
    assert not sums
    return found


@pytest.mark.parametrize("sum_of", [one_by_one, in_lanes, by_halves])
@pytest.mark.parametrize("size", [1, 2, 8, SIZE, SIZE + 3])
def test_trees(sum_of: Callable[[torch.Tensor], torch.Tensor], size: int) -> None:
    steps = steps_of(tree_of(size, asked(sum_of, size)), -1, unfused)
    generator = torch.Generator().manual_seed(0)
    terms = torch.randn(500, size, generator=generator) * torch.exp2(
        torch.randint(-8, 9, (500, size), generator=generator)
    )
    assert torch.equal(gone_through(steps, terms), sum_of(terms))


def test_lanes_are_few_steps() -> None:
    assert len(steps_of(tree_of(800, asked(in_lanes, 800)), -1, unfused)) == 15
    assert steps_of(tree_of(800, asked(one_by_one, 800)), -1, unfused) == [Step(0, 0, 1, 800)]


def test_sums_too_deep_in_others() -> None:
    def from_the_end(terms: torch.Tensor) -> torch.Tensor:
        return one_by_one(terms.flip(1))

    with pytest.raises(NotFound):
        tree_of(SIZE, asked(from_the_end, SIZE))


def layer_of(
    kind: type, inputs: int, outputs: int, has_bias: bool, place: int
) -> nn.Linear | Conv1D:
    """A layer whose weight lies `place` bytes beyond a multiple of 64."""
    generator = torch.Generator().manual_seed(inputs + outputs)
    layer: Any = (
        nn.Linear(inputs, outputs, has_bias) if kind is nn.Linear else Conv1D(outputs, inputs)
    )
    memory = torch.randn(inputs * outputs + 32, generator=generator)
    first = (place - memory.data_ptr()) % 64 // 4
    layer.weight = nn.Parameter(memory[first:][: inputs * outputs].view(layer.weight.shape), False)
    if layer.bias is not None:
        layer.bias = nn.Parameter(torch.randn(outputs, generator=generator), False)
    return layer


@NEEDS_AVX512
@pytest.mark.parametrize("place", [0, 4, 8, 32, 60])
@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "has_bias"),
    [
        (nn.Linear, 256, 768, False),
        (nn.Linear, 256, 96, True),
        (nn.Linear, 688, 256, False),
        (nn.Linear, 64, 4099, False),
        (nn.Linear, 3072, 17, False),
        (Conv1D, 128, 384, True),
        (Conv1D, 512, 128, True),
    ],
)
def test_rows_have_the_bits_of_one(
    kind: type, inputs: int, outputs: int, has_bias: bool, place: int
) -> None:
    layer = layer_of(kind, inputs, outputs, has_bias, place)
    plan = RowPlan.of_weight(layer.weight, has_bias, kind)
    assert isinstance(plan.order, SumOrder)
    product = RowsApart(plan, conv1d) if kind is Conv1D else RowsApart(plan)
    for num_rows in (1, 2, 7, 16, 33, 64):
        x = torch.randn(num_rows, inputs, generator=torch.Generator().manual_seed(num_rows))
        alone = torch.cat([layer(row[None]) for row in x.split(1)])[:, 0]
        assert same_bits(product(x, layer.weight, layer.bias), alone)


@NEEDS_AVX512
def test_another_number_of_threads() -> None:
    """What the order is may depend on it: it is asked for again."""
    layer: Any = layer_of(nn.Linear, 64, 50, False, 0)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        plan = RowPlan(layer)
        x = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
        alone = torch.cat([layer(row) for row in x.split(1)])
        assert plan.order is not None
        assert same_bits(RowsApart(plan)(x, layer.weight, None), alone)
    finally:
        torch.set_num_threads(threads)


@NEEDS_AVX512
def test_an_order_is_tried() -> None:
    """What was asked for is not believed: the bits of products that cancel have to be its."""
    layer: Any = layer_of(nn.Linear, 64, 32, False, 0)
    rows = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([layer(row) for row in rows.split(1)])

    def made(outputs: int) -> Any:
        return layer_of(nn.Linear, 64, outputs, False, 0)

    assert order_of_rows(layer, rows, alone, made) is not None
    alone[3, 5] = alone[3, 5].nextafter(torch.tensor(9.0))
    assert order_of_rows(layer, rows, alone, made) is None


def test_place_is_part_of_a_layout() -> None:
    memory = torch.zeros(100)
    assert layout_of(memory[:64].view(8, 8))[-1] != layout_of(memory[1:65].view(8, 8))[-1]
    assert layout_of(memory.bfloat16()[1:65].view(8, 8))[-1] == 0
    assert by_output(Conv1D(3, 5)).shape == (3, 5)


@pytest.mark.long
@NEEDS_AVX512
@pytest.mark.skipif(not hasattr(library(), "mkl_serv_cpu_detect"), reason="PyTorch has no MKL")
def test_orders_of_other_cpus() -> None:
    """MKL adds in other orders on other CPUs, which are found as well."""
    script = Path(__file__).with_name("another_cpu.py")
    chosen = "test_rows_have_the_bits_of_one or number_of_threads"
    orders = set()
    for kind in KINDS:
        run = subprocess.run(
            [sys.executable, str(script), kind, __file__, "-k", chosen],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert "36 passed" in run.stdout
        orders.add(run.stdout.splitlines()[0])
    assert len(orders) == len(KINDS)
