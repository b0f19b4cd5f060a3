"""Which of Transformers' implementations of attention is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import ModelConfig


def attn_implementation(model_config: ModelConfig) -> str | None:
    """Return what ``hf_overrides`` says of it; None for Transformers' own choice."""
    overrides = model_config.hf_overrides
    return overrides.get("attn_implementation") if isinstance(overrides, dict) else None
