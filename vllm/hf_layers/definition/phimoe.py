"""Phi-3.5-MoE: the bias of its last layer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def mend(model: Any, vllm_config: VllmConfig) -> None:
    """Add the bias of the last layer, which vLLM loads and does not use."""
    config = vllm_config.model_config.hf_text_config
    if getattr(config, "lm_head_bias", False) and hasattr(model, "lm_head"):
        model.compute_logits = partial(_biased_logits, model)


def _biased_logits(model: Any, hidden_states: torch.Tensor) -> torch.Tensor | None:
    """As ``compute_logits`` of vLLM's models."""
    logits: torch.Tensor | None = model.logits_processor(
        model.lm_head, hidden_states, model.lm_head.bias
    )
    return logits
