"""Layers of StableLM 2 that vLLM's class of StableLM does not have.

Source: ``StableLmDecoderLayer``, ``StableLmAttention`` and ``StableLmLayerNormPerHead``. The names
of parameters are those of a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.fork.models.modules import replace_modules

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.config import VllmConfig


class ParallelLayer(nn.Module):
    """Adds the results of attention and of the feed-forward network, both of one normed input.

    Args:
        upstream: vLLM's layer, whose modules it takes.
    """

    def __init__(self, upstream: Any) -> None:
        super().__init__()
        self.self_attn = upstream.self_attn
        self.mlp = upstream.mlp
        self.input_layernorm = upstream.input_layernorm

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``StablelmDecoderLayer.forward``."""
        residual = hidden_states
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attn(positions=positions, hidden_states=normed)
        return residual + attended + self.mlp(normed), residual


class NormedAttention(nn.Module):
    """Norms each head of queries and keys before they are rotated.

    Args:
        upstream: vLLM's attention, whose modules it takes.
        eps: of the norms.
        like: tells their dtype and device.
    """

    def __init__(self, upstream: Any, eps: float, like: torch.Tensor) -> None:
        super().__init__()
        self.qkv_proj = upstream.qkv_proj
        self.o_proj = upstream.o_proj
        self.rotary_emb = upstream.rotary_emb
        self.attn = upstream.attn
        self._sizes = [upstream.q_size, upstream.kv_size, upstream.kv_size]
        self.q_layernorm = NormPerHead(upstream.total_num_heads, upstream.head_dim, eps, like)
        self.k_layernorm = NormPerHead(
            upstream.total_num_key_value_heads, upstream.head_dim, eps, like
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """As ``StablelmAttention.forward``."""
        qkv, _ = self.qkv_proj(hidden_states)
        query, key, value = qkv.split(self._sizes, dim=-1)
        query, key = self.q_layernorm(query), self.k_layernorm(key)
        query, key = self.rotary_emb(positions, query, key)
        output, _ = self.o_proj(self.attn(query, key, value))
        return output


class NormPerHead(nn.Module):
    """A norm with a weight of its own for each head.

    Args:
        num_heads: of all ranks, which each loads; it uses those of its own.
        head_size: numbers of a head.
        eps: of the norms.
        like: tells their dtype and device.
    """

    def __init__(self, num_heads: int, head_size: int, eps: float, like: torch.Tensor) -> None:
        super().__init__()
        self.norms = nn.ModuleList(
            nn.LayerNorm(head_size, eps=eps, bias=False, dtype=like.dtype, device=like.device)
            for _ in range(num_heads)
        )
        ranks = get_tensor_model_parallel_world_size()
        first = get_tensor_model_parallel_rank() * num_heads // ranks
        self._own = slice(first, first + max(1, num_heads // ranks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed heads of x, [num_tokens, heads of the rank * head_size], like it."""
        norms = self.norms[self._own]
        heads = x.unflatten(-1, (len(norms), -1)).unbind(1)
        return torch.cat([norm(head) for norm, head in zip(norms, heads, strict=True)], dim=-1)


def mend(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Give the layers of a StableLM, which is not loaded yet, what its configuration asks for."""
    config = vllm_config.model_config.hf_text_config
    from vllm.model_executor.models.stablelm import StablelmDecoderLayer  # imports what imports us

    replace_modules(
        model,
        lambda _, one: _as_asked(one, config) if isinstance(one, StablelmDecoderLayer) else None,
    )


def _as_asked(layer: Any, config: PreTrainedConfig) -> nn.Module:
    if getattr(config, "qk_layernorm", False):
        norm = layer.input_layernorm  # of the same epsilon
        layer.self_attn = NormedAttention(layer.self_attn, norm.eps, like=norm.weight)
    return ParallelLayer(layer) if getattr(config, "use_parallel_residual", False) else layer
