"""Formulas that vLLM's class of a model has otherwise than Transformers', whatever the dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.models.bloom.modeling_bloom import bloom_gelu_forward

from vllm.hf_numerics.activations import by_request
from vllm.hf_numerics.attn_implementation import attn_implementation
from vllm.logger import init_logger
from vllm.model_executor.layers.activation import GELU

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)


class BloomGELU(nn.Module):
    """GELU by a hyperbolic tangent, in the roundings of Transformers' ``BloomGelu``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function of each element of x, of its shape and dtype."""
        return by_request(bloom_gelu_forward, x)


def use_hf_formulas(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Make the layers of `model`, which is not loaded yet, compute what Transformers computes."""
    if attn_implementation(vllm_config.model_config) in (None, "sdpa"):
        _drop_soft_caps(model)
    if vllm_config.model_config.hf_text_config.model_type == "bloom":
        _use_bloom_gelu(model)


def _drop_soft_caps(model: nn.Module) -> None:
    """Leave attention scores as they are (Gemma 2's, for one), as ``sdpa_attention_forward`` does,
    which takes no ``softcap``; it is what Transformers chooses unless asked otherwise.
    """
    for layer in model.modules():
        implementation: Any = getattr(layer, "impl", None)
        if getattr(implementation, "logits_soft_cap", None):
            implementation.logits_soft_cap = 0
            logger.info_once(
                "hf_compat: attention scores are not capped, as with Transformers' "
                'attn_implementation="sdpa"; hf_overrides={"attn_implementation": "eager"} caps '
                "them."
            )


def _use_bloom_gelu(model: nn.Module) -> None:
    """vLLM's BLOOM has the exact GELU, which is up to 5e-4 away from its approximation."""
    for parent in model.modules():
        if isinstance(getattr(parent, "gelu_impl", None), GELU):
            parent.gelu_impl = BloomGELU()
