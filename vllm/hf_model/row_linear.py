"""Linear layers of Transformers' models, for one token of each of several requests, or prompts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from vllm.hf_layers.products.prompts_together import PromptsTogether
from vllm.hf_layers.products.row_counts import ManyRows, RowCounts, counts_of_layout
from vllm.hf_layers.products.single_row_products import (
    LayerType,
    RowPlan,
    RowsApart,
    conv1d,
    layout_of,
)
from vllm.hf_model.group import Group


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

        def counts(has_bias: bool) -> RowCounts:
            return counts_of_layout(layout, has_bias, kind)

        self._apart = RowsApart(plan, product)
        self._rows = ManyRows(self._apart, product, counts)
        self._prompts = PromptsTogether(self._rows, product, lambda has_bias: [counts(has_bias)])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product.

        Args:
            x: [num_requests, ..., in_features] of rows; of prompts [1, num_tokens, in_features], or
                [1, num_prompts, in_features] of their last tokens.
        """
        weight, bias, prompts = self._layer.weight, self._layer.bias, self._group.prompts
        if prompts and x.shape[-2] == prompts[-1][2]:
            product = self._prompts(prompts, x.flatten(0, -2), weight, bias)
        elif self._group.is_active:
            product = self._group.share(self._products, x.flatten(0, -2))
        elif self._is_faster(x):
            product = self._products(x.flatten(0, -2))
        else:
            return self._alone(x)
        return product.view(*x.shape[:-1], product.shape[-1])  # of no rows, too

    def _products(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product of each row [n, in_features]."""
        return self._rows(rows, self._layer.weight, self._layer.bias)

    def _is_faster(self, x: torch.Tensor) -> bool:
        """Whether the fork's product takes x, which is a single row, with the bits it has alone."""
        return self._apart.takes_single_rows and x.numel() == x.shape[-1]
