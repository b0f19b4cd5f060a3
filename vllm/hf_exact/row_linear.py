"""Linear layers of Transformers' models, for a group of requests with one row each."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from vllm.hf_numerics.row_counts import ManyRows, counts_of_layout
from vllm.hf_numerics.single_row_products import LayerType, RowPlan, RowsApart, conv1d, layout_of


class Group:
    """Whether a model computes a group of requests now, or one alone.

    Attributes:
        is_active: a group, one row of each.
    """

    def __init__(self) -> None:
        self.is_active = False


class RowLinear:
    """Stands in for the ``forward`` of a linear layer; alone, a request goes the layer's own way,
    but for single rows that the fork's product takes.

    Args:
        layer: ``nn.Linear`` or Transformers' ``Conv1D``.
        plan: for its shape.
        group: of the model.
    """

    def __init__(self, layer: nn.Linear | Conv1D, plan: RowPlan, group: Group) -> None:
        self._alone = layer.forward
        self._layer = layer
        self._group = group
        product = conv1d if isinstance(layer, Conv1D) else linear
        layout = layout_of(layer.weight)
        kind: LayerType = type(layer)
        self._apart = RowsApart(plan, product)
        self._group_product = ManyRows(
            self._apart,
            product,
            lambda has_bias: counts_of_layout(layout, has_bias, kind),
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product, of a group [num_requests, ..., in_features]."""
        if not self._group.is_active and not self._is_faster(x):
            return self._alone(x)
        product = self._group_product(x.flatten(0, -2), self._layer.weight, self._layer.bias)
        return product.view(*x.shape[:-1], -1)

    def _is_faster(self, x: torch.Tensor) -> bool:
        """Whether the fork's product takes x, which is a single row, with the bits it has alone."""
        return self._apart.has_order and x.numel() == x.shape[-1]
