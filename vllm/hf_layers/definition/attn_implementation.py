"""Which of Transformers' implementations of attention is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import ModelConfig

_OF_VLLM = "vllm"
"""What vLLM's Transformers backend chooses."""


def attn_implementation(model_config: ModelConfig) -> str | None:
    """Return what ``hf_overrides`` or config.json says; None for Transformers' own choice."""
    overrides = model_config.hf_overrides
    if isinstance(overrides, dict) and "attn_implementation" in overrides:
        found: str | None = overrides["attn_implementation"]
        return found
    found = getattr(model_config.hf_text_config, "_attn_implementation", None)
    return found if found != _OF_VLLM else None
