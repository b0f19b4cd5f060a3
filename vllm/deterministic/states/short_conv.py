"""The short convolution of LFM2, between two gates."""

from __future__ import annotations

from functools import partial

import torch

from vllm.deterministic.states.cache import last_inputs, metadata_of, use_states
from vllm.deterministic.states.recurrences import convolve
from vllm.model_executor.layers.mamba.short_conv import ShortConv


def use_short_conv(layer: ShortConv) -> None:
    """Let a short convolution, which is not loaded yet, compute with portable bits."""
    assert layer.model_config is not None
    use_states(layer, [last_inputs(layer.L_cache, layer.conv_dim, layer.model_config.dtype)])
    layer.forward = partial(_forward, layer)


def _forward(layer: ShortConv, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
    """As ``ShortConv.forward``, which writes to `output`, [num_tokens, hidden_size]."""
    projected, _ = layer.in_proj(hidden_states)
    first, second, x = projected.chunk(3, dim=-1)
    x = first * x
    metadata = metadata_of(layer)
    if metadata is not None:
        x = convolve(layer.conv, x, layer.kv_cache[0], metadata.requests, None)
    result, _ = layer.out_proj(second * x)
    output.copy_(result)
