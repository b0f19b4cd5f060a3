"""The portable attention as Transformers calls it (``AttentionInterface``)."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.models.opt.modeling_opt import OPTAttention

from vllm.fork_kernels.portable.attention import HEAD_SIZES

from ..refusal import attach_refusal as refusal
from .attention import Scoring
from .gradients.attention import attention
from .layout import Layout, make_layout

__all__ = [
    "NAME",
    "NAME_IN_TRAINING",
    "note_positions",
    "register_attention",
    "scale_in_kernel",
]

NAME = "vllm_deterministic"
"""Of the attention implementation (``config._attn_implementation``)."""

NAME_IN_TRAINING = "vllm_deterministic_training"
"""Of that of models that are attached to be trained."""

_NOTED: ContextVar[torch.Tensor | bool] = ContextVar("positions", default=False)
"""The positions of a forward, for attention that is not told them: True if the model counts them
from 0 on and no row has padding, False if they are not known.
"""

_KNOWN_TENSORS = ("position_ids", "cache_position")


def register_attention() -> None:
    """Make the implementation known to Transformers, under both names."""
    for name in (NAME, NAME_IN_TRAINING):
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, make_layout)


def note_positions(position_ids: torch.Tensor | None, mask: Any) -> None:
    """Keep what a model is told of the positions of its tokens, for `attend`.

    Args:
        position_ids: of its forward; None if it makes its own.
        mask: likewise; a tensor [sequences, columns] has 0 for padding.
    """
    if position_ids is None:
        is_padded = isinstance(mask, torch.Tensor) and not bool((mask != 0).all())
        _NOTED.set(mask is None or not is_padded)
    else:
        _NOTED.set(position_ids)


def scale_in_kernel(module: Any) -> None:
    """Scale OPT's scores, not its queries, which would be rounded once more."""
    if isinstance(module, OPTAttention):
        module.portable_scaling, module.scaling = module.scaling, 1.0


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Layout | torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend, causally.

    Args:
        module: the attention layer. Its ``portable_scaling``, if it has one, is the scale instead.
        query: bfloat16 or float16 [batch, heads, num_queries, head_size].
        key: likewise [batch, kv_heads, num_keys, head_size].
        value: like key; heads may be smaller.
        attention_mask: of `make_layout`.
        scaling: of scores.
        sliding_window: how many tokens a query sees, itself included; None for all before it.
        softcap: of scores.
        s_aux: [heads], sinks: a score of each head without a value; None for none.
        others: what other implementations need.

    Returns:
        [batch, num_queries, heads, head_size of values], zero for padding, and None for weights.

    Raises:
        ValueError: something is asked for that has no portable form, or training mode is on in a
            model for inference.
    """
    if module.training and module.config._attn_implementation == NAME:
        raise refusal(type(module).__name__, "it is in training mode: call eval()")
    if others.get("dropout"):
        raise refusal(f"dropout={others['dropout']} of attention", "its draws are not specified")
    layout = _checked_layout(module, attention_mask, key.shape[2], sliding_window, others)
    scale = getattr(module, "portable_scaling", scaling)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scoring = Scoring(scale, sliding_window or 0, softcap or 0.0)
    size, missing = query.shape[-1], query.shape[-1] - value.shape[-1]  # of latent attention
    if size not in HEAD_SIZES or missing < 0:
        raise refusal(
            type(module).__name__,
            "heads must be of 16, 32, ... 256 numbers, and values have no more than keys",
        )
    result = attention(query, key, pad(value, (0, missing)), layout, scoring, s_aux)
    return result[..., : value.shape[-1]], None


def _checked_layout(
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
    told = others.get("position_ids")
    positions = _NOTED.get() if told is None else told
    if positions is False:
        raise refusal(name, "it is not told the positions of its tokens, which must be checked")
    if positions is not True:
        layout.check_positions(positions)
    return layout
