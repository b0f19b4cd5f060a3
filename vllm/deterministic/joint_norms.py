"""Attention whose norms of queries and keys are over all heads together (MiniMax M2)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from vllm.deterministic.refusal import refusal
from vllm.fork.models.modules import class_name

_MINIMAX = "vllm.model_executor.models.minimax_m2.MiniMaxM2Attention"


def use_joint_norms(name: str, layer: Any) -> None:
    """Let attention of MiniMax M2 call its norms, whose own class computes both at once.

    Args:
        name: of the layer.
        layer: any of the model.

    Raises:
        ValueError: it is such attention, and its heads are on several ranks.
    """
    if class_name(layer) != _MINIMAX:
        return
    if layer.q_norm.tp_world > 1:
        raise refusal(
            name, layer, "its norms are over the heads of all ranks; one rank computes it"
        )
    layer.forward = partial(_forward, layer)


def _forward(layer: Any, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
    """As ``MiniMaxM2Attention.forward``."""
    qkv, _ = layer.qkv_proj(hidden_states)
    q, k, v = qkv.split([layer.q_size, layer.kv_size, layer.kv_size], dim=-1)
    q, k = layer.rotary_emb(positions, layer.q_norm(q), layer.k_norm(k))
    output, _ = layer.o_proj(layer.attn(q, k, v))
    return output
