"""Matrix products of several prompts at once, with the bits that each prompt has alone.

On many CPUs the order in which a library adds does not depend on how many rows a matrix has, once
there are several: oneDNN adds blocks of 512 or 1,024 columns, one after the other. Nothing promises
that, so it is found out for each number of rows that occurs, as for single rows: products of terms
that cancel have to be, row by row, what they are for a few rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch.nn import functional

from vllm.hf_numerics.requests import Run
from vllm.hf_numerics.single_row_products import (
    LayerType,
    Product,
    cancelling_rows,
    layer_of_layout,
    same_bits,
)

LONGEST = 512
"""Rows of a prompt that is put together with others; longer ones are as fast alone."""

UNIT = 64
"""Rows are multiplied in multiples of this, for there to be few numbers to find out about."""

MOST_AT_ONCE = 2048

Layout = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
"""Shape, strides, dtype and device of a weight."""

Part = tuple[Product, int, int]
"""What multiplies rows, the first one and their end."""


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
    """For which numbers of rows products with a shape of weight add in one order.

    It keeps a weight of that shape, whose products cancel.

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
        self._probe, rows = cancelling_rows(layer_of_layout(*layout, has_bias, kind))
        self._rows = rows[:, 0]
        self._products = self._by_parts(parts) if parts else self._probe(self._rows)

    def _by_parts(self, parts: tuple[int, ...]) -> torch.Tensor:
        """Return the products of a few rows with each part of the weight alone."""
        weights = self._probe.weight.split(parts)
        biases = [None] * len(parts)
        if self._probe.bias is not None:
            biases = self._probe.bias.split(parts)
        pairs = zip(weights, biases, strict=True)
        return torch.cat([functional.linear(self._rows, *pair) for pair in pairs], dim=-1)

    def has_the_order(self, num_rows: int) -> bool:
        """Whether so many rows, at least two, have each the bits that it has among a few."""
        if (found := self._known.get(num_rows)) is None:
            found = self._known[num_rows] = self._is_found(num_rows)
        return found

    def _is_found(self, num_rows: int) -> bool:
        repeats = -(-num_rows // len(self._rows))
        rows, expected = (x.repeat(repeats, 1)[:num_rows] for x in (self._rows, self._products))
        return same_bits(self._probe(rows), expected)


@functools.cache
def counts_of_layout(
    layout: Layout, has_bias: bool, kind: LayerType, parts: tuple[int, ...] = ()
) -> RowCounts:
    """Return what is known of a shape of layer, for all layers that have it: see `RowCounts`."""
    return RowCounts(layout, has_bias, kind, parts)


class PromptsTogether:
    """Takes the rows of a step apart into what is multiplied at once.

    Args:
        by_row: multiplies rows with the bits that each has alone.
        whole: multiplies a prompt.
        counts: return, with and without a bias, what is known of the weights that `whole`
            multiplies with.
        fused: what multiplies with all of these weights at once, and what is known of that.
    """

    def __init__(
        self,
        by_row: Product,
        whole: Product,
        counts: Callable[[bool], Sequence[RowCounts]],
        fused: tuple[Product, Callable[[bool], RowCounts]] | None = None,
    ) -> None:
        self._by_row = by_row
        self._whole = whole
        self._counts = functools.cache(counts)
        self._fused = fused
        self._last: tuple[tuple[Run, ...], bool, list[Part]] | None = None

    def parts(self, runs: tuple[Run, ...], has_bias: bool) -> list[Part]:
        """Return what is multiplied at once, in the order of rows.

        Args:
            runs: of a step, which keeps them for its other layers.
            has_bias: of the product.
        """
        if self._last is not None and self._last[0] is runs and self._last[1] == has_bias:
            return self._last[2]
        parts: list[Part] = []
        for is_short, group in groupby(runs, lambda run: not run[0] and run[2] - run[1] <= LONGEST):
            members = list(group)
            may_be_joined = is_short and (len(members) > 1 or self._fused is not None)
            joined = self._joined(members, has_bias) if may_be_joined else None
            parts.extend(joined or (self._alone(run) for run in members))
        self._last = runs, has_bias, parts
        return parts

    def _alone(self, run: Run) -> Part:
        is_single, begin, end = run
        return self._by_row if is_single else self._whole, begin, end

    def _joined(self, prompts: list[Run], has_bias: bool) -> list[Part] | None:
        """Return how prompts that follow each other are multiplied at once; None if they cannot."""
        begin, end = prompts[0][1], prompts[-1][2]
        sizes = sizes_together(end - begin)
        lengths = {last - first for _, first, last in prompts}
        known = self._counts(has_bias)
        if not all(counts.has_the_order(n) for counts in known for n in lengths):
            return None
        multiply = self._whole
        if self._fused is not None and all(map(self._fused[1](has_bias).has_the_order, sizes)):
            multiply = self._fused[0]
        elif not all(counts.has_the_order(n) for counts in known for n in sizes):
            return None
        parts: list[Part] = []
        for size in sizes:
            parts.append((multiply, begin, begin + size))
            begin += size
        return parts
