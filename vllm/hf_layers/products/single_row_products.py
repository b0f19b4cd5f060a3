"""Matrix products of several requests' rows with the bits that each row has alone.

A library of matrix products sums in an order that depends on the number of rows. Which numbers of
rows leave the order of a single row is in no documentation; it is found out here, on the machine,
for the shapes at hand. The order does not depend on the values, so values are tried that show it:
products that cancel, of which nothing is left but what was rounded on the way. Where no number of
rows will do, rows are multiplied one by one, with blocks of the weights that stay in the cache.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from vllm.fork_kernels import row_orders, row_products
from vllm.fork_kernels.torch_order.ordered_products import SumOrder, ordered_products
from vllm.hf_layers.products.probe.row_order import by_output, order_of_rows

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
LayerType = Callable[..., nn.Module]

Layout = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device, int]
"""Shape, strides, dtype and device of a weight, and, in float32 on a CPU, where products may depend
on it, how many bytes its address is beyond a multiple of 64.
"""

Order = int | SumOrder
"""Of `row_products`, or of `ordered_products`."""

GROUP_SIZES = (32, 16, 8, 4, 2)
"""How many rows are computed together; no other number is."""

_LINE = 64  # bytes
_OWN_VALUES = 1024
_BLOCK_BYTES = 1 << 19  # of weights; a core's second-level cache holds them


class RowsApart:
    """Multiplies rows with the bits that each has alone.

    Args:
        plan: for the shape of the weight.
        product: of rows that share a call, with weight and bias.
    """

    def __init__(self, plan: RowPlan, product: Product = linear) -> None:
        self._plan = plan
        self._product = product

    @property
    def takes_single_rows(self) -> bool:
        """Whether the fork's own product has the bits, and is faster for a single row, too."""
        return isinstance(self._plan.order, int)

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the products of x [n, in_features], [n, out_features]."""
        order = self._plan.order
        if isinstance(order, int):
            return row_products(x, weight, bias, order)
        if len(x) < 2:
            return self._product(x, weight, bias)
        if order is not None:
            weight = weight.T if self._product is conv1d else weight
            return ordered_products(x, weight, bias, order)
        if not self._plan.block_height:
            pieces = x.split(_pieces(len(x), self._plan.sizes))
            return torch.cat([self._product(piece, weight, bias) for piece in pieces])
        weights = weight.split(self._plan.block_height)
        biases: Any = [None] * len(weights) if bias is None else bias.split(len(weights[0]))
        columns = [
            torch.cat([self._product(row, *block) for row in x.split(1)])
            for block in zip(weights, biases, strict=True)
        ]
        return torch.cat(columns, dim=-1)


def by_parts(
    sizes: Sequence[int], x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return the products with each part of a weight alone, side by side.

    Args:
        sizes: rows of each part.
        x: [..., in_features].
        weight: [sum of sizes, in_features].
        bias: [sum of sizes] or None.
    """
    biases: Any = [None] * len(sizes) if bias is None else bias.split(sizes)
    products = map(functools.partial(linear, x), weight.split(sizes), biases)
    return torch.cat(list(products), dim=-1)


def conv1d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """As ``Conv1D.forward``, which always has a bias; weight: [in_features, out_features]."""
    assert bias is not None
    return torch.addmm(bias, x, weight)


def _pieces(num_rows: int, sizes: list[int]) -> list[int]:
    """Return how to cut rows into the proven sizes, the large ones first, and single ones."""
    found = []
    for size in [*sizes, 1]:
        found += [size] * (num_rows // size)
        num_rows %= size
    return found


class RowPlan:
    """How rows of one shape of layer are multiplied.

    Args:
        layer: of that shape.

    Attributes:
        order: in which the fork's own product of single rows gives their bits; None if in none.
        sizes: those of `GROUP_SIZES` that give each row the bits that it has alone, without.
        block_height: rows of the weights in a block; 0 if they are not multiplied in blocks.
    """

    def __init__(self, layer: nn.Linear | Conv1D) -> None:
        probe, rows = cancelling_rows(layer)
        alone = torch.cat([probe(row) for row in rows.split(1)])
        self.sizes: list[int] = []
        self.block_height = 0
        self.order: Order | None = _order(probe, rows[:, 0], alone[:, 0])
        if self.order is None:
            self.order = order_of_rows(probe, rows[:, 0], alone[:, 0], _of_outputs(layer))
        if self.order is not None:
            return
        self.sizes = [
            size for size in GROUP_SIZES if same_bits(_in_groups(probe, rows, size), alone)
        ]
        # A GPU has no cache to each of its processors that blocks of weights would stay in, and
        # would be given as many small products as there are rows times blocks.
        if not self.sizes and type(layer) is nn.Linear and rows.device.type == "cpu":
            self.block_height = _block_height(probe, rows[0], alone[0])

    @staticmethod
    def of_weight(weight: torch.Tensor, has_bias: bool, kind: LayerType = nn.Linear) -> RowPlan:
        """Return the plan of layers of a kind with a weight [out_features, in_features], or for
        ``Conv1D`` [in_features, out_features].
        """
        return _plan_of_layout(layout_of(weight), has_bias, kind, torch.get_num_threads())


@functools.cache
def _plan_of_layout(layout: Layout, has_bias: bool, kind: LayerType, num_threads: int) -> RowPlan:
    """The threads, which share a product's outputs or its terms, are those of the process."""
    return RowPlan(layer_of_layout(layout, has_bias, kind))


def layout_of(weight: torch.Tensor) -> Layout:
    """Return how a weight lies in memory."""
    is_placed = weight.dtype == torch.float32 and weight.device.type == "cpu"
    place = weight.data_ptr() % _LINE if is_placed else 0
    return weight.shape, weight.stride(), weight.dtype, weight.device, place


def layer_of_layout(layout: Layout, has_bias: bool, kind: LayerType) -> Any:
    """Return a layer of a kind with a weight like that: it holds anything."""
    shape, stride, dtype, device, place = layout
    layer: Any
    with torch.device("meta"):  # its own weights would be drawn at random
        arguments = {} if kind is Conv1D else {"bias": has_bias}
        layer = kind(shape[1], shape[0], **arguments)
    weight = placed(shape, stride, dtype, device, place)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if layer.bias is not None:
        layer.bias = nn.Parameter(torch.randn(layer.bias.shape).to(weight), requires_grad=False)
    return layer


def placed(
    shape: torch.Size,
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    place: int,
) -> torch.Tensor:
    """Return a tensor that holds anything, `place` bytes beyond a multiple of 64."""
    if not place:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)
    span = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    memory = torch.empty(span + _LINE, dtype=dtype, device=device)
    first = (place - memory.data_ptr()) % _LINE // dtype.itemsize
    return memory.as_strided(shape, stride, first)


def _of_outputs(layer: nn.Linear | Conv1D) -> Callable[[int], Any]:
    """Return how to make layers like one, with another number of outputs."""
    inputs, outputs = by_output(layer).T.shape
    _, stride, *others = layout_of(layer.weight)

    def made(count: int) -> Any:
        is_linear = isinstance(layer, nn.Linear)
        shape = torch.Size((count, inputs) if is_linear else (inputs, count))
        own = stride if count == outputs else (shape[1], 1)
        layout: Any = (shape, own, *others)
        return layer_of_layout(layout, layer.bias is not None, type(layer))

    return made


def cancelling_rows(layer: nn.Linear | Conv1D) -> tuple[Any, torch.Tensor]:
    """Return a layer of the same shape, and rows [32, 1, in_features] whose products are nothing
    but rounding: each term comes twice, at different places, with both signs. Terms have all
    magnitudes, for in float32 a few products of 16 bits of one magnitude add up without rounding.
    A bias is a term as well, since beside one that stays nothing of the rounding would be seen.
    Outputs behind the first `_OWN_VALUES` have their values again: to draw more takes seconds.
    """
    weight: Any = layer.weight
    generator = torch.Generator(weight.device).manual_seed(0)
    by_input = weight.T if isinstance(layer, nn.Linear) else weight  # [in_features, out_features]
    has_bias = layer.bias is not None
    half = (by_input.shape[0] - has_bias) // 2
    order = torch.randperm(by_input.shape[0], generator=generator, device=weight.device)
    first, second, beside_bias = order[:half], order[half : 2 * half], order[2 * half :][:has_bias]
    count = min(by_input.shape[1], _OWN_VALUES)
    values = torch.randn(half + 1, count, generator=generator, device=weight.device)
    exponents = torch.randint(-8, 9, values.shape, generator=generator, device=weight.device)
    values *= torch.exp2(exponents)
    block = weight.new_zeros(by_input.shape[0], count)
    block[first] = block[second] = values[:half].to(weight.dtype)
    block[beside_bias] = values[half:].to(weight.dtype)
    synthetic = placed(*layout_of(weight))
    view = synthetic
    if isinstance(layer, nn.Linear):
        view, block = synthetic.T, block.T.contiguous().T
    for columns in view.split(count, dim=1):
        columns.copy_(block[:, : columns.shape[1]])
    factors = torch.randn(GROUP_SIZES[0], half, generator=generator, device=weight.device)
    rows = weight.new_zeros(GROUP_SIZES[0], 1, by_input.shape[0])
    rows[:, 0, first] = factors.to(weight.dtype)
    rows[:, 0, second] = -factors.to(weight.dtype)
    rows[:, 0, beside_bias] = -1
    made = {"weight": nn.Parameter(synthetic, False)}
    if has_bias:
        made["bias"] = nn.Parameter(view[beside_bias].flatten().clone(), False)
    return with_parameters(layer, **made), rows


def with_parameters(module: nn.Module, **parameters: nn.Parameter) -> nn.Module:
    """Return a copy of `module` that shares all but these parameters with it."""
    made = copy.copy(module)
    made._parameters = {**module._parameters, **parameters}
    return made


def _order(probe: Any, rows: torch.Tensor, alone: torch.Tensor) -> int | None:
    """Return the order in which the fork's product of `rows` has the bits `alone`, if it has."""
    if not isinstance(probe, nn.Linear):
        return None
    if probe.bias is not None and not probe.weight.is_contiguous():
        return None
    for order in row_orders(probe.weight):
        products = [  # few rows are computed in another way than many
            torch.cat([row_products(few, probe.weight, probe.bias, order) for few in rows.split(n)])
            for n in (len(rows), 1, 3)
        ]
        if all(same_bits(product, alone) for product in products):
            return order
    return None


def _in_groups(probe: Any, rows: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat([probe(group) for group in rows.split(size)])


def _block_height(probe: Any, row: torch.Tensor, alone: torch.Tensor) -> int:
    """Return of how many rows of the weight a block that stays in the cache is, if it gives the
    bits of the whole; 0 if it does not, or is the whole.
    """
    row_bytes = probe.weight.element_size() * probe.in_features
    height = max(32, _BLOCK_BYTES // row_bytes // 32 * 32)
    if height >= probe.out_features:
        return 0
    biases: Any = [None] * len(probe.weight.split(height))
    if probe.bias is not None:
        biases = probe.bias.split(height)
    blocks = zip(probe.weight.split(height), biases, strict=True)
    together = torch.cat([linear(row, *block) for block in blocks], dim=-1)
    return height if same_bits(together, alone) else 0


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype are equal to the last bit."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))
