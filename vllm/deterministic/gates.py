"""Attention whose result a gate weighs (Qwen3-Next, Qwen3.5)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from vllm.fork.models.modules import class_name
from vllm.fork_kernels.portable.functions import Function, portable_map

_GATED = "vllm.model_executor.models.qwen3_next.Qwen3NextAttention"


def use_portable_gate(layer: nn.Module) -> None:
    """Give the gate of attention a portable sigmoid, if `layer` is attention that has one."""
    if class_name(layer) == _GATED:
        layer.forward = partial(_forward, layer)


def _forward(layer: Any, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
    """As ``Qwen3NextAttention.forward``: sigmoid and product are each rounded."""
    qkv, _ = layer.qkv_proj(hidden_states)
    q, k, v, gate = layer._project_qkv_gate(qkv, positions)
    attended = layer.attn(q, k, v)
    if gate is not None:
        attended = attended * portable_map(gate.contiguous(), Function.SIGMOID)
    output, _ = layer.o_proj(attended)
    return output
