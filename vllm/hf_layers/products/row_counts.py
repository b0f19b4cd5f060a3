"""For which numbers of rows a library adds in one order, so that rows may be multiplied together.

On many CPUs the order in which a product is added does not depend on how many rows a matrix has,
once there are several: oneDNN adds blocks of 512 or 1,024 columns, one after the other. Often it is
that of a single row, too. Nothing promises either, so it is found out for each number of rows that
occurs: products of terms that cancel have to be, row by row, what they are for a few rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from vllm.hf_layers.products.single_row_products import (
    LayerType,
    Layout,
    Product,
    by_parts,
    cancelling_rows,
    layer_of_layout,
    same_bits,
)

UNIT = 64
"""Rows are multiplied in multiples of this, for there to be few numbers to find out about."""

MOST_AT_ONCE = 2048

_MOST_BYTES = 1 << 27
"""Of a weight that is tried, which stays in memory."""

FEW = 64
"""Single rows up to which the project's own product of them is about as fast."""

BY_ROW = torch.float16
"""The dtype in which PyTorch multiplies many rows one by one, where no instructions are for it: the
project's product is several times as fast.
"""


def sizes_together(num_rows: int) -> list[int]:
    """Return how many rows are multiplied at once: multiples of `UNIT`, and at the end what is left
    of less than two.
    """
    sizes = []
    while num_rows > MOST_AT_ONCE:
        sizes.append(MOST_AT_ONCE)
        num_rows -= MOST_AT_ONCE
    main = num_rows // UNIT * UNIT
    if main not in (0, num_rows):
        main -= UNIT
    return [*sizes, *(size for size in (main, num_rows - main) if size)]


class RowCounts:
    """What is known of products with a shape of weight on a CPU.

    It keeps a weight of that shape, whose products cancel; of one that is larger than 128 MiB
    nothing is known.

    Args:
        layout: of the weight.
        has_bias: whether the layer has one.
        kind: of layer.
        parts: outputs of each of the layers that Hugging Face has instead of the one; products
            with the whole have to be theirs.
    """

    def __init__(
        self, layout: Layout, has_bias: bool, kind: LayerType, parts: tuple[int, ...] = ()
    ) -> None:
        self._known: dict[int, bool] = {}
        shape, _, dtype, device, _ = layout
        self._is_tried = device.type == "cpu" and math.prod(shape) * dtype.itemsize <= _MOST_BYTES
        if not self._is_tried:
            return
        self._probe, rows = cancelling_rows(layer_of_layout(layout, has_bias, kind))
        self._rows = rows[:, 0]

        def multiply(rows: torch.Tensor) -> torch.Tensor:
            if not parts:
                return self._probe(rows)
            return by_parts(parts, rows, self._probe.weight, self._probe.bias)

        self._products = multiply(self._rows)
        # Theirs have three dimensions, of which linear makes two.
        alone = torch.cat([multiply(row)[0] for row in rows.split(1)])
        self._is_order_of_single_rows = same_bits(alone, self._products)

    def has_the_order(self, num_rows: int) -> bool:
        """Whether so many rows, at least two, have each the bits that it has among a few."""
        if (found := self._known.get(num_rows)) is None:
            found = self._known[num_rows] = self._is_tried and self._is_found(num_rows)
        return found

    def has_single_rows(self, num_rows: int) -> bool:
        """Whether so many rows have each the bits that it has alone."""
        return self._is_tried and self._is_order_of_single_rows and self.has_the_order(num_rows)

    def _is_found(self, num_rows: int) -> bool:
        repeats = -(-num_rows // len(self._rows))
        rows, expected = (x.repeat(repeats, 1)[:num_rows] for x in (self._rows, self._products))
        return same_bits(self._probe(rows), expected)


def counts_of_layout(
    layout: Layout, has_bias: bool, kind: LayerType, parts: tuple[int, ...] = ()
) -> RowCounts:
    """Return what is known of a shape of layer, for all layers that have it: see `RowCounts`."""
    return _counts_of_layout(layout, has_bias, kind, parts, torch.get_num_threads())


@functools.cache
def _counts_of_layout(
    layout: Layout, has_bias: bool, kind: LayerType, parts: tuple[int, ...], num_threads: int
) -> RowCounts:
    """The threads, which share a product's outputs or its terms, are those of the process."""
    return RowCounts(layout, has_bias, kind, parts)


class ManyRows:
    """Multiplies single rows together where, and only where, each has the bits it has alone.

    Args:
        by_row: multiplies rows with these bits, whatever their number.
        product: multiplies a matrix.
        counts: return, with and without a bias, what is known of the weight.
    """

    def __init__(
        self, by_row: Product, product: Product, counts: Callable[[bool], RowCounts]
    ) -> None:
        self._by_row = by_row
        self._product = product
        self._counts = counts

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the products of x [n, in_features], [n, out_features]."""
        if len(x) <= FEW or x.dtype == BY_ROW:
            return self._by_row(x, weight, bias)
        sizes = sizes_together(len(x))
        if not all(map(self._counts(bias is not None).has_single_rows, sizes)):
            return self._by_row(x, weight, bias)
        if len(sizes) == 1:
            return self._product(x, weight, bias)
        return torch.cat([self._product(piece, weight, bias) for piece in x.split(sizes)])
