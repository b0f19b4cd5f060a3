"""The epsilons of norms that vLLM's classes take from elsewhere than Transformers' do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.hf_layers.models import facts_of
from vllm.model_executor.layers.layernorm import RMSNorm

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig

_LATENT_NORMS = (".q_a_layernorm", ".kv_a_layernorm")
_OF_LATENT_NORMS = 1e-6
"""Default of the classes of norms, which ``DeepseekV3Attention`` and all like it leave."""


def use_hf_epsilons(model: nn.Module, config: PreTrainedConfig) -> None:
    """Give each RMSNorm the epsilon that Transformers' class of the model gives it.

    Args:
        model: of vLLM.
        config: of its text part.
    """
    has_constant = facts_of(config).has_constant_epsilon
    for name, layer in model.named_modules():
        if not isinstance(layer, RMSNorm):
            continue
        if name.endswith(_LATENT_NORMS):
            layer.variance_epsilon = _OF_LATENT_NORMS
        elif has_constant:
            layer.variance_epsilon = config.rms_norm_eps
