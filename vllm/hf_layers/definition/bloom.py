"""BLOOM: the approximation of its GELU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers.models.bloom.modeling_bloom import bloom_gelu_forward

from vllm.hf_layers.layers.activations import by_request
from vllm.model_executor.layers.activation import GELU

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class BloomGELU(nn.Module):
    """GELU by a hyperbolic tangent, in the roundings of Transformers' ``BloomGelu``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function of each element of x, of its shape and dtype."""
        return by_request(bloom_gelu_forward, x)


def mend(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Approximate GELU: vLLM's BLOOM has the exact one, which is up to 5e-4 away."""
    for parent in model.modules():
        if isinstance(getattr(parent, "gelu_impl", None), GELU):
            parent.gelu_impl = BloomGELU()
