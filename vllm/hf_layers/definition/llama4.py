"""Llama 4: whether queries are scaled by their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_TUNING = "attn_temperature_tuning"


def configure(vllm_config: VllmConfig) -> None:
    """Scale queries if the model's configuration says so. Else vLLM's class does where texts may
    have more than 32,768 tokens, and nowhere else.
    """
    model_config = vllm_config.model_config
    asked = bool(getattr(model_config.hf_text_config, _TUNING, False))
    model_config.override_generation_config |= {_TUNING: asked}
