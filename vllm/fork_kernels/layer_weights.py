"""What decoder layers compute with, as the operators of all layers take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

__all__ = ["Epsilons", "LayerWeights", "ProductWeights", "in_one_list"]

_NONE = torch.empty(0)
"""Stands in a list of tensors for what a layer lacks."""


class ProductWeights(NamedTuple):
    """What a linear layer multiplies with.

    Attributes:
        weight: [out_features, in_features], or a packed one.
        how: what the operator needs beside it, or None.
        bias: [out_features], or None.
    """

    weight: torch.Tensor
    how: torch.Tensor | None = None
    bias: torch.Tensor | None = None


class LayerWeights(NamedTuple):
    """What a layer computes with.

    Attributes:
        input_norm: [hidden_size].
        qkv: of queries, keys and values.
        query_norm: [head_size], of each head of the queries, or None.
        key_norm: likewise.
        output: of what attention gives.
        post_norm: [hidden_size].
        gate_up: of the gate, and of what it is multiplied with.
        down: of these.
    """

    input_norm: torch.Tensor
    qkv: ProductWeights
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: ProductWeights
    post_norm: torch.Tensor
    gate_up: ProductWeights
    down: ProductWeights

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All of them, in the order of ``csrc/bindings/decoder/layer_weights.h``."""
        found = [
            *(self.input_norm, *self.qkv, self.query_norm, self.key_norm, *self.output),
            *(self.post_norm, *self.gate_up, *self.down),
        ]
        return [_NONE if one is None else one for one in found]


class Epsilons(NamedTuple):
    """Of the norms of all layers: the first and second of a layer, and those of heads."""

    input: float
    post: float
    heads: float = 0.0


def in_one_list(layers: Sequence[LayerWeights]) -> list[torch.Tensor]:
    """Return the tensors of layers, one layer behind the other."""
    return [one for layer in layers for one in layer.tensors]
