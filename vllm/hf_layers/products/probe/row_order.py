"""The order in which a float32 layer adds a single row's products, found on the machine.

It depends on the CPU, the weight's shape and place in memory, and the number of threads; most
outputs have one order, and a few at the end of a thread's share have another, which is that of
weights with as few outputs. Trees of additions are asked for (`summation_order`), and then an order
is what it is taken for only if rows whose products cancel have its bits in all outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import torch
from torch import nn

from vllm.fork_kernels.torch_order.ordered_products import (
    MOST_SUMS,
    Range,
    SumOrder,
    has_ordered_products,
    ordered_products,
)
from vllm.hf_layers.products.probe.summation_order import NotFound, Pairs, steps_of, tree_of

_ABSORBS = 2.0**60
"""Added to a sum of ones, it is all that is left."""

_UNROUNDED = 1 + 2.0**-12
"""Its square has one bit more than float32."""

_FEW_OUTPUTS = (1, 2, 3)
_MOST_RANGES = 64
_MOST_INPUTS = 1 << 15

LayerOf = Callable[[int], Any]
"""Returns a layer like the one at hand, with so many outputs."""


def order_of_rows(
    layer: Any, rows: torch.Tensor, alone: torch.Tensor, layer_of: LayerOf
) -> SumOrder | None:
    """Return the order of a layer's single rows.

    Args:
        layer: ``nn.Linear`` or ``Conv1D``, whose products with `rows` cancel.
        rows: [n, in_features].
        alone: [n, out_features], what the layer makes of each row by itself.
        layer_of: makes layers that hold anything.

    Returns:
        None if it is not found, or the operator does not take the weight.
    """
    if not has_ordered_products(layer.weight) or rows.shape[1] > _MOST_INPUTS:
        return None
    outputs = alone.shape[1]
    chosen: list[Range | None] = [None] * outputs
    try:
        for order in _candidates(layer_of, outputs):
            found = ordered_products(rows, by_output(layer), layer.bias, SumOrder((order,)))
            equal = (found.view(torch.int32) == alone.view(torch.int32)).all(0)
            for n in equal.nonzero().flatten().tolist():
                chosen[n] = chosen[n] or order
            if all(chosen):
                return _joined(chosen)
    except NotFound:
        pass
    return None


def by_output(layer: Any) -> torch.Tensor:
    """Return a layer's weight as [out_features, in_features]."""
    weight: torch.Tensor = layer.weight
    return weight if isinstance(layer, nn.Linear) else weight.T


def _joined(chosen: list[Any]) -> SumOrder | None:
    ranges, end = [], 0
    for order, group in groupby(chosen):
        end += len(list(group))
        ranges.append(order._replace(end=end))
    return SumOrder(tuple(ranges)) if len(ranges) <= _MOST_RANGES else None


def _candidates(layer_of: LayerOf, outputs: int) -> Iterator[Range]:
    """Yield the order of most outputs, and then those of weights with a few outputs, for all."""
    asked = [(outputs, range(max(1, outputs // 4)))]
    asked += [(few, range(n, n + 1)) for few in _FEW_OUTPUTS for n in range(few)]
    for count, own in asked:
        yield _Asked(layer_of(count), list(own)).order._replace(end=outputs)


class _Asked:
    """How a layer adds up.

    Args:
        layer: holds anything.
        outputs: which are taken to have one order; each answers one question at a time.
    """

    def __init__(self, layer: Any, outputs: list[int]) -> None:
        self._layer = layer
        self._weight = by_output(layer)
        self._outputs = torch.tensor(outputs)
        self._size = self._weight.shape[1]
        self._num_terms = self._size if layer.bias is None else self._size + 1

    @property
    @torch.no_grad()
    def order(self) -> Range:
        """That of the outputs, as of all.

        Raises:
            NotFound: it cannot be written down.
        """
        tree = tree_of(self._num_terms, self._counts)
        steps = tuple(steps_of(tree, self._size, self._are_fused))
        if any(step.sum >= MOST_SUMS for step in steps):
            raise NotFound
        return Range(len(self._weight), self._begins_anew, steps)

    def _counts(self, pairs: Pairs) -> torch.Tensor:
        sums = self._sums(1.0, 1.0, pairs, (_ABSORBS, -_ABSORBS))
        return self._num_terms - sums.round().long()

    def _are_fused(self, pairs: Pairs) -> torch.Tensor:
        """The square of a number minus that number is what is left, rounded before or not."""
        sums = self._sums(_UNROUNDED, 0.0, pairs, (_UNROUNDED, -1.0))
        is_product = pairs[:, 0] < self._size
        return is_product & (sums.double() == _UNROUNDED**2 - _UNROUNDED)

    @property
    def _begins_anew(self) -> bool:
        """Whether what all of a sum's terms are, -0, is what it is."""
        self._weight.fill_(1.0)
        if self._layer.bias is not None:
            self._layer.bias.fill_(-0.0)
        sums = self._layer(self._weight.new_full((1, 1, self._size), -0.0)).flatten()
        return bool(sums[self._outputs].signbit().all())

    def _sums(
        self, x: float, factor: float, pairs: Pairs, factors: tuple[float, float]
    ) -> torch.Tensor:
        """Return a sum for each pair of terms [n]: products of `x` with `factor`, but for these two
        with their own factors.
        """
        self._weight.fill_(factor)
        if self._layer.bias is not None:
            self._layer.bias.fill_(x * factor)
        row = self._weight.new_full((1, 1, self._size), x)
        found = [self._weight.new_empty(0)]
        for some in pairs.split(len(self._outputs)):
            for terms, own in zip(some.T, factors, strict=True):
                self._write(terms, x, own)
            found.append(self._layer(row).flatten()[self._outputs[: len(some)]])
            for terms in some.T:
                self._write(terms, x, factor)
        return torch.cat(found)

    def _write(self, terms: torch.Tensor, x: float, factor: float) -> None:
        """Let one term of each output be `x` times `factor`."""
        own, is_product = self._outputs[: len(terms)], terms < self._size
        self._weight[own[is_product], terms[is_product]] = factor
        if self._layer.bias is not None:
            self._layer.bias[own[~is_product]] = x * factor
