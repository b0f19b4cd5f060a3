"""Ministral 3: the scales of queries, by their positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_ORIGINAL = "original_max_position_embeddings"


def configure(vllm_config: VllmConfig) -> None:
    """Let vLLM scale queries; shorter texts have scales of 1."""
    config = vllm_config.model_config.hf_text_config
    original = config.rope_parameters[_ORIGINAL]
    if vllm_config.model_config.max_model_len > original:
        # The name in Mistral's own format, the only one that vLLM reads.
        beta = config.rope_parameters["llama_4_scaling_beta"]
        config.llama_4_scaling = {_ORIGINAL: original, "beta": beta}


def mend(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Multiply queries by scales in the model's dtype, as ``Ministral3Attention`` does."""
    from vllm.model_executor.models.mistral import MistralAttention  # it imports what imports this

    dtype = vllm_config.model_config.dtype
    for layer in model.modules():
        if isinstance(layer, MistralAttention):
            layer._get_llama_4_attn_scale = partial(
                _rounded, layer._get_llama_4_attn_scale, dtype=dtype
            )


def _rounded(
    scales: Callable[[torch.Tensor], torch.Tensor], positions: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    return scales(positions).to(dtype)
