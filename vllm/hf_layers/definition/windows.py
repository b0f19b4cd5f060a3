"""Windows of attention that vLLM's class of a model has otherwise than Transformers'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from vllm.hf_layers.definition.attention_layers import attention_layers
from vllm.hf_layers.models import facts_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def use_hf_windows(model: nn.Module, config: PreTrainedConfig) -> None:
    """Let each layer of `model`, whose cache is not made yet, see as far as Transformers' does.

    In vLLM a window of Cohere's is one token longer, as in training; Qwen's layers all have one;
    those of GPT-OSS take turns.
    """
    if not facts_of(config).has_windows_by_layer:
        return
    kinds: list[str] = config.layer_types
    for number, layer in attention_layers(model):
        is_sliding = kinds[number] == "sliding_attention"
        _set_window(layer, config.sliding_window if is_sliding else None)


def _set_window(layer: Any, window: int | None) -> None:
    """Set how many tokens a query sees, itself included; None for all before it."""
    if layer.sliding_window == window:
        return
    layer.sliding_window = window  # which the layer's cache is made by
    if isinstance(layer.impl.sliding_window, tuple):  # (left, right) of the query
        layer.impl.sliding_window = (-1, -1) if window is None else (window - 1, 0)
    else:
        layer.impl.sliding_window = -1 if window is None else window
