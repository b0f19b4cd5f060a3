"""Attention of Transformers' models with portable bits; see ``docs/numerics/attention.md``.

Keys and values stay in Transformers' cache, in the model's dtype; each call turns those of the
batch into the kernel's integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from vllm.fork_kernels.portable.attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
)

from ..refusal import attach_refusal as refusal
from .layout import BLOCK_TOKENS, Layout, make_layout

NAME = "vllm_deterministic"
"""Of the attention implementation (``config._attn_implementation``)."""

NAME_IN_TRAINING = "vllm_deterministic_training"
"""Of that of models that are attached to be trained."""

_KNOWN_TENSORS = ("position_ids", "cache_position")


def register_attention() -> None:
    """Make the implementation known to Transformers."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_layout)


@dataclass(frozen=True)
class Scoring:
    """How a layer scores keys: the scale of scores, the window and the cap, 0 for none of these."""

    scale: float
    window: int
    soft_cap: float


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
    if module.training:
        raise refusal(type(module).__name__, "it is in training mode: call eval()")
    layout = checked_layout(module, attention_mask, key.shape[2], sliding_window, others)
    scoring = scoring_of(module, query, scaling, sliding_window, softcap)
    return attended(query, key, value, layout, scoring), None


def scoring_of(
    module: Any,
    query: torch.Tensor,
    scaling: float | None,
    sliding_window: int | None,
    softcap: float | None,
) -> Scoring:
    """Return how a layer scores, of the arguments of `attend`."""
    scale = getattr(module, "portable_scaling", scaling)
    return Scoring(
        query.shape[-1] ** -0.5 if scale is None else scale, sliding_window or 0, softcap or 0.0
    )


def attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scoring: Scoring
) -> torch.Tensor:
    """Return the result of `attend`, of arguments that were checked."""
    cache = _integer_cache(key, value, layout)
    queries = query.transpose(1, 2).flatten(0, 1)
    if layout.query_rows is not None:
        queries = queries[layout.query_rows]
    result = portable_attention(
        *(queries.contiguous(), cache, layout.pages, layout.query_starts, layout.lengths),
        scale=scoring.scale,
        window=scoring.window,
        soft_cap=scoring.soft_cap,
    )
    if layout.query_rows is not None:
        tokens = result
        result = tokens.new_zeros(query.shape[0] * query.shape[2], *tokens.shape[1:])
        result[layout.query_rows] = tokens
    return result.view(query.shape[0], query.shape[2], *result.shape[1:])


def checked_layout(
    module: Any,
    layout: Layout | torch.Tensor | None,
    num_keys: int,
    window: int | None,
    others: dict[str, Any],
) -> Layout:
    """Return `layout`, if what `attend` was called with has a portable form.

    Raises:
        ValueError: it has none.
    """
    name = type(module).__name__
    if not isinstance(layout, Layout):
        raise refusal("this attention_mask", "only 2D masks with padding at the ends are specified")
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
