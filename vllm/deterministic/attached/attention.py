"""Attention of Transformers' models with portable bits; see ``docs/numerics/attention.md``.

Keys and values stay in Transformers' cache, in the model's dtype; each call turns those of the
batch into the kernel's integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vllm.fork_kernels.portable.attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
)

from .layout import BLOCK_TOKENS, Layout

__all__ = ["Scoring", "attended"]


@dataclass(frozen=True)
class Scoring:
    """How a layer scores keys: the scale of scores, the window and the cap, 0 for none of these."""

    scale: float
    window: int
    soft_cap: float


def attended(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    scoring: Scoring,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend, causally.

    Args:
        query: bfloat16 or float16 [batch, heads, num_queries, head_size].
        key: likewise [batch, kv_heads, num_keys, head_size].
        value: like key.
        layout: of the batch.
        scoring: of the layer.
        sinks: [heads], a score without a value; None for none.

    Returns:
        [batch, num_queries, heads, head_size], zero for padding.
    """
    cache = _integer_cache(key, value, layout)
    queries = query.transpose(1, 2).flatten(0, 1)
    if layout.query_rows is not None:
        queries = queries[layout.query_rows]
    result = portable_attention(
        *(queries.contiguous(), cache, layout.pages, layout.query_starts, layout.lengths),
        scale=scoring.scale,
        window=scoring.window,
        soft_cap=scoring.soft_cap,
        sinks=None if sinks is None else sinks.float(),
    )
    if layout.query_rows is not None:
        tokens = result
        result = tokens.new_zeros(query.shape[0] * query.shape[2], *tokens.shape[1:])
        result[layout.query_rows] = tokens
    return result.view(query.shape[0], query.shape[2], *result.shape[1:])


def _integer_cache(key: torch.Tensor, value: torch.Tensor, layout: Layout) -> torch.Tensor:
    kv_heads, head_size = key.shape[1], key.shape[3]
    shape = attention_cache_shape(layout.num_blocks, kv_heads, head_size, BLOCK_TOKENS)
    cache = torch.empty(shape, dtype=torch.uint8, device=key.device)
    keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (key, value))
    portable_append(keys, values, cache, layout.slots)
    return cache
