"""The layers of a model that attend, by their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn


def attention_layers(model: nn.Module) -> Iterator[tuple[int, Any]]:
    """Yield the number of each decoder layer, from 0, with vLLM's ``Attention`` in it."""
    # Not before a model is made: what these import, imports what imports this module.
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.models.utils import extract_layer_index

    for layer in model.modules():
        if isinstance(layer, Attention):
            yield extract_layer_index(layer.layer_name), layer
