"""GPT-2: the scale of its scores, in each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from vllm.hf_layers.definition.attention_layers import attention_layers
from vllm.hf_layers.definition.fields import asked_for

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def mend(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Scale scores as ``GPT2Attention`` does: vLLM's knows one scale for all layers."""
    config = vllm_config.model_config.hf_text_config
    for number, layer in attention_layers(model):
        scale = layer.head_size**-0.5 if config.scale_attn_weights else 1.0
        if asked_for(config, "scale_attn_by_inverse_layer_idx"):
            scale /= number + 1
        layer.impl.scale = scale
