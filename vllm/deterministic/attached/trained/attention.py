"""Attention of models that train (``AttentionInterface``)."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from ...refusal import attach_refusal as refusal
from ..attention import NAME_IN_TRAINING, checked_layout, scoring_of
from ..gradients.attention import attention
from ..layout import Layout, make_layout

__all__ = ["register_attention"]


def register_attention() -> None:
    """Make the implementation known to Transformers."""
    AttentionInterface.register(NAME_IN_TRAINING, attend)
    AttentionMaskInterface.register(NAME_IN_TRAINING, make_layout)


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
    """Attend as ``attend`` of models for inference does, in training mode, too.

    Raises:
        ValueError: something is asked for that has no portable form.
    """
    if others.get("dropout"):
        raise refusal(f"dropout={others['dropout']} of attention", "its draws are not specified")
    layout = checked_layout(module, attention_mask, key.shape[2], sliding_window, others)
    scoring = scoring_of(module, query, scaling, sliding_window, softcap)
    return attention(query, key, value, layout, scoring), None
