"""Falcon: the biases of its products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from vllm.model_executor.layers.linear import LinearBase

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def mend(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Add each bias to its product: vLLM's Falcon adds up a layer's products, and then biases."""
    for layer in model.modules():
        if isinstance(layer, LinearBase):
            layer.skip_bias_add = False
