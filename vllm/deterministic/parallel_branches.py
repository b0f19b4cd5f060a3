"""Decoder layers whose attention and MLP read the same input, and the order of their sum."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from vllm.fork.models.modules import class_name

_COHERE = "vllm.model_executor.models.commandr.CohereDecoderLayer"


def use_portable_sum(layer: nn.Module) -> None:
    """Let a layer of Cohere's add attention to the residual first, as in Transformers."""
    if class_name(layer) == _COHERE:
        layer.forward = partial(_forward, layer)


def _forward(
    layer: Any, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``CohereDecoderLayer.forward``."""
    normed, residual = layer.input_layernorm(hidden_states, hidden_states)
    attended = layer.self_attn(positions=positions, hidden_states=normed)
    return residual + attended + layer.mlp(normed), residual
