"""Apertus: the dtype of its activation's parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from vllm.model_executor.layers.activation import XIELU

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def mend(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Give the parameters of xIELU the model's dtype: vLLM keeps them in bfloat16."""
    for layer in model.modules():
        if isinstance(layer, XIELU):
            layer.to(vllm_config.model_config.dtype)
