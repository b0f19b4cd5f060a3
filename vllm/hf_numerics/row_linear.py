"""Matrix products of several requests' rows with the bits that each row has alone.

A library of matrix products sums in an order that depends on the number of rows. Which numbers of
rows leave the order of a single row is in no documentation; it is found out here, on the machine,
for the shapes at hand. The order does not depend on the values, so values are tried that show it:
products that cancel, of which nothing is left but what was rounded on the way. Where no number of
rows will do, rows are multiplied one by one, with blocks of the weights that stay in the cache.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from vllm.fork_ops.row_products import has_row_products, linear_by_row

Product = Callable[[torch.Tensor], torch.Tensor]
ByRow = Callable[..., torch.Tensor]

GROUP_SIZES = (32, 16, 8, 4, 2)
"""How many rows are computed together; no other number is."""

_BLOCK_BYTES = 1 << 19  # of weights; a core's second-level cache holds them


class Group:
    """Whether a model computes a group of requests now, or one alone.

    Attributes:
        is_active: a group, one row of each.
    """

    def __init__(self) -> None:
        self.is_active = False


class RowLinear:
    """Stands in for the ``forward`` of a linear layer; alone, a request goes the layer's own way.

    Args:
        layer: ``nn.Linear`` or Transformers' ``Conv1D``.
        plan: for its shape.
        group: of the model.
    """

    def __init__(self, layer: nn.Linear | Conv1D, plan: RowPlan, group: Group) -> None:
        self._alone: Product = layer.forward
        self._layer = layer
        self._group = group
        self._sizes = plan.sizes
        self._by_row = plan.by_row
        self._blocks = _blocks(layer, plan.block_height) if plan.block_height else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product, of a group [num_requests, ..., in_features]."""
        if not self._group.is_active:
            return self._alone(x)
        if self._by_row is not None:
            product = self._by_row(x.flatten(0, -2), self._layer.weight, self._layer.bias)
            return product.view(*x.shape[:-1], -1)
        together = next((size for size in self._sizes if size <= len(x)), 1)
        if together == len(x):
            return self._alone(x)
        rows = x.split(together)
        if self._blocks is None:
            return torch.cat([self._alone(row) for row in rows])
        columns = [torch.cat([block(row) for row in rows]) for block in self._blocks]
        return torch.cat(columns, dim=-1)


class RowPlan:
    """How rows of one shape of layer are multiplied.

    Args:
        layer: of that shape.

    Attributes:
        by_row: the fork's own product of single rows, if it gives their bits.
        sizes: those of `GROUP_SIZES` that give each row the bits that it has alone.
        block_height: rows of the weights in a block; 0 if they are not multiplied in blocks.
    """

    def __init__(self, layer: nn.Linear | Conv1D) -> None:
        probe, rows = _cancelling(layer)
        alone = torch.cat([probe(row) for row in rows.split(1)])
        self.by_row = _equal_by_row(layer, probe, rows[:, 0], alone[:, 0])
        self.sizes = [
            size for size in GROUP_SIZES if same_bits(_in_groups(probe, rows, size), alone)
        ]
        self.block_height = 0
        if not self.sizes and isinstance(layer, nn.Linear):
            height = _height(layer)
            blocks = _blocks(probe, height) if height < layer.out_features else []
            if blocks and same_bits(
                torch.cat([block(rows[:1]) for block in blocks], dim=-1), alone[:1]
            ):
                self.block_height = height

    @staticmethod
    def key(layer: nn.Linear | Conv1D) -> tuple[Any, ...]:
        """Return what two layers must share to share a plan."""
        weight: Any = layer.weight
        return type(layer), weight.shape, weight.stride(), weight.dtype, layer.bias is None


def _cancelling(layer: nn.Linear | Conv1D) -> tuple[Any, torch.Tensor]:
    """Return a layer of the same shape, and rows [32, 1, in_features] whose products are nothing
    but rounding: each term comes twice, at different places, with both signs.
    """
    weight: Any = layer.weight
    generator = torch.Generator(weight.device).manual_seed(0)
    by_input = weight.T if isinstance(layer, nn.Linear) else weight  # [in_features, out_features]
    half = by_input.shape[0] // 2
    order = torch.randperm(2 * half, generator=generator, device=weight.device)
    values = torch.randn(half, by_input.shape[1], generator=generator, device=weight.device)
    synthetic = torch.zeros_like(weight)
    view = synthetic.T if isinstance(layer, nn.Linear) else synthetic
    view[order[:half]] = view[order[half:]] = values.to(weight.dtype)
    factors = torch.randn(GROUP_SIZES[0], half, generator=generator, device=weight.device)
    rows = weight.new_zeros(GROUP_SIZES[0], 1, by_input.shape[0])
    rows[:, 0, order[:half]] = factors.to(weight.dtype)
    rows[:, 0, order[half:]] = -factors.to(weight.dtype)
    probe = copy.copy(layer)
    probe._parameters = {**layer._parameters, "weight": nn.Parameter(synthetic, False)}
    return probe, rows


def _equal_by_row(
    layer: nn.Linear | Conv1D, probe: Any, rows: torch.Tensor, alone: torch.Tensor
) -> ByRow | None:
    """Return the fork's product of single rows, if it is there and gives the bits of `alone`."""
    weight = probe.weight.data
    if not isinstance(layer, nn.Linear) or not has_row_products(weight):
        return None
    by_row = linear_by_row(weight)
    return by_row if same_bits(by_row(rows, weight, layer.bias), alone) else None


def _in_groups(product: Product, rows: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat([product(group) for group in rows.split(size)])


def _height(layer: nn.Linear) -> int:
    row_bytes = layer.weight.element_size() * layer.in_features
    return max(32, _BLOCK_BYTES // row_bytes // 32 * 32)


def _blocks(layer: Any, height: int) -> list[Product]:
    """Return products with `height` rows of a layer's weights each."""
    weights = layer.weight.split(height)
    biases: Any = [None] * len(weights) if layer.bias is None else layer.bias.split(height)
    return [_product(weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def _product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    return lambda row: nn.functional.linear(row, weight, bias)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype are equal to the last bit."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))
