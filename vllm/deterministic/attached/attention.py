"""Attention of Transformers' models with portable bits; see ``docs/numerics/attention.md``.

Keys and values stay in Transformers' cache, in the model's dtype; each call turns those of the
batch into the kernel's integers.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from vllm.fork_ops.portable_attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
)

from ..refusal import attach_refusal as refusal
from .layout import BLOCK_TOKENS, Layout, make_layout

NAME = "vllm_deterministic"
"""Of the attention implementation (``config._attn_implementation``)."""

_KNOWN_TENSORS = ("position_ids", "cache_position")


def register_attention() -> None:
    """Make the implementation known to Transformers."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_layout)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Layout | torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend, causally (``AttentionInterface``).

    Args:
        module: the attention layer. Its ``portable_scaling``, if it has one, is the scale instead.
        query: bfloat16 or float16 [batch, heads, num_queries, head_size].
        key: likewise [batch, kv_heads, num_keys, head_size].
        value: like key.
        attention_mask: of `make_layout`.
        scaling: of scores.
        sliding_window: how many tokens a query sees, itself included; None for all before it.
        softcap: of scores.
        others: what other implementations need.

    Returns:
        [batch, num_queries, heads, head_size], zero for padding, and None for weights.

    Raises:
        ValueError: something is asked for that has no portable form.
    """
    layout = _checked(module, attention_mask, key.shape[2], sliding_window, others)
    cache = _integer_cache(key, value, layout)
    queries = query.transpose(1, 2).flatten(0, 1)
    if layout.query_rows is not None:
        queries = queries[layout.query_rows]
    scale = getattr(module, "portable_scaling", scaling)
    result = portable_attention(
        *(queries.contiguous(), cache, layout.pages, layout.query_starts, layout.lengths),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        window=sliding_window or 0,
        soft_cap=softcap or 0.0,
    )
    if layout.query_rows is not None:
        tokens = result
        result = tokens.new_zeros(query.shape[0] * query.shape[2], *tokens.shape[1:])
        result[layout.query_rows] = tokens
    return result.view(query.shape[0], query.shape[2], *result.shape[1:]), None


def _checked(
    module: Any,
    layout: Layout | torch.Tensor | None,
    num_keys: int,
    window: int | None,
    others: dict[str, Any],
) -> Layout:
    name = type(module).__name__
    if not isinstance(layout, Layout):
        raise refusal("this attention_mask", "only 2D masks with padding on the left are specified")
    if module.training:
        raise refusal(name, "it is in training mode: call eval()")
    if not getattr(module, "is_causal", True) or others.get("is_causal") is False:
        raise refusal(name, "only causal attention is specified")
    if others.get("output_attentions"):
        raise refusal("output_attentions=True", "the kernel has no table of weights")
    for argument, value in others.items():
        if isinstance(value, torch.Tensor) and argument not in _KNOWN_TENSORS:
            raise refusal(name, f"its attention with {argument} is not specified")
    if layout.num_keys != num_keys or layout.num_seen != min(window or num_keys, num_keys):
        raise refusal(name, "its mask is not that of causal attention with its sliding window")
    if others.get("position_ids") is None:
        raise refusal(name, "it is not told the positions of its tokens, which must be checked")
    layout.check_positions(others["position_ids"])
    return layout


def _integer_cache(key: torch.Tensor, value: torch.Tensor, layout: Layout) -> torch.Tensor:
    kv_heads, head_size = key.shape[1], key.shape[3]
    shape = attention_cache_shape(layout.num_blocks, kv_heads, head_size, BLOCK_TOKENS)
    cache = torch.empty(shape, dtype=torch.uint8, device=key.device)
    keys, values = (x.transpose(1, 2).flatten(0, 1) for x in (key, value))
    portable_append(keys, values, cache, layout.slots)
    return cache
