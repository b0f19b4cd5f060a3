"""Rotary embeddings with Hugging Face's angles and roundings."""

from __future__ import annotations

import torch

from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.model_executor.layers.rotary_embedding.linear_scaling_rope import (
    LinearScalingRotaryEmbedding,
)


def use_hf_angles(layer: RotaryEmbeddingBase) -> None:
    """Give `layer`, which is this model's alone, the angles that Hugging Face computes.

    vLLM's are the same but for linear scaling, where it divides the position, and Hugging Face the
    frequency.

    Source: ``_compute_linear_scaling_rope_parameters`` and ``LlamaRotaryEmbedding.forward``.
    """
    if type(layer) is not LinearScalingRotaryEmbedding or len(layer.scaling_factors) != 1:
        return
    factor = layer.scaling_factors[0]
    frequencies = layer._compute_inv_freq(layer.base) / factor
    positions = torch.arange(layer.cos_sin_cache.shape[0], dtype=torch.float)
    angles = torch.outer(positions, frequencies)
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1).to(layer.cos_sin_cache.dtype)
    layer._buffers = dict(layer._buffers)  # a copied module still shares its dictionaries
    layer.cos_sin_cache = cache.to(layer.cos_sin_cache.device)
