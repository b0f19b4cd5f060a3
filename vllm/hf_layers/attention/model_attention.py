"""Attention that a model of Transformers computes itself, not through its attention interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from vllm.hf_layers.attention.attention import HFAttentionImpl
from vllm.hf_layers.models import facts_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class MultiQueryAttentionImpl(HFAttentionImpl):
    """One head of keys and values that PyTorch broadcasts over the queries', in its own kernel.

    Source: ``FalconAttention.forward``, of models with rotary embeddings.
    """

    may_use_operator = False

    def _attend_whole(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        attended = functional.scaled_dot_product_attention(
            query[None],
            key[None].contiguous(),
            value[None].contiguous(),
            attn_mask=mask,
            is_causal=mask is None and query.shape[1] > 1,
            scale=scale,
        )
        return attended[0].transpose(0, 1)


class BloomAttentionImpl(HFAttentionImpl):
    """Scores with ALiBi in the model's dtype, added to the products in one operation.

    Source: ``BloomAttention.forward`` and ``build_alibi_tensor``.
    """

    has_slopes = True
    may_use_operator = False

    def _attend_whole(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        positions = torch.arange(key.shape[1])
        alibi = (self.alibi_slopes[:, None, None] * positions).to(query.dtype)
        keys = key.contiguous().transpose(1, 2)
        scores = torch.baddbmm(alibi, query, keys, beta=1.0, alpha=scale)
        if query.shape[1] > 1:
            future = positions > positions[:, None]
            scores = scores.masked_fill(future, -torch.inf)
        weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        return torch.bmm(weights, value.contiguous()).transpose(0, 1)


def attention_of(config: PreTrainedConfig) -> type[HFAttentionImpl]:
    """Return how Transformers' model of a configuration attends."""
    kind = facts_of(config).attention
    if kind == "alibi":
        return BloomAttentionImpl
    if kind == "multi_query" and config.multi_query and not config.new_decoder_architecture:
        return MultiQueryAttentionImpl
    return HFAttentionImpl
