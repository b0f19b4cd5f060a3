"""Attention whose norms of queries and keys are over all heads together (MiniMax M2)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from vllm.fork.flags.fork_flags import ForkFlags
from vllm.fork.models.modules import class_name

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_ATTENTION = "vllm.model_executor.models.minimax_m2.MiniMaxM2Attention"
_ARCHITECTURE = "MiniMaxM2ForCausalLM"


def check_joint_norms(vllm_config: VllmConfig) -> None:
    """Refuse such a model on several ranks, before anything starts.

    Raises:
        ValueError: its heads would be on several ranks in deterministic mode.
    """
    is_portable = ForkFlags.of(vllm_config).is_portable
    is_split = vllm_config.parallel_config.tensor_parallel_size > 1
    if is_portable and is_split and vllm_config.model_config.architecture == _ARCHITECTURE:
        raise ValueError(
            f"deterministic=True: the norms of {_ARCHITECTURE} are over the heads of all ranks: "
            "use tensor_parallel_size=1."
        )


def use_joint_norms(layer: Any) -> None:
    """Let attention of MiniMax M2 call its norms, whose own class computes both at once."""
    if class_name(layer) == _ATTENTION:
        layer.forward = partial(_forward, layer)


def _forward(layer: Any, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
    """As ``MiniMaxM2Attention.forward``."""
    qkv, _ = layer.qkv_proj(hidden_states)
    q, k, v = qkv.split([layer.q_size, layer.kv_size, layer.kv_size], dim=-1)
    q, k = layer.rotary_emb(positions, layer.q_norm(q), layer.k_norm(k))
    output, _ = layer.o_proj(layer.attn(q, k, v))
    return output
