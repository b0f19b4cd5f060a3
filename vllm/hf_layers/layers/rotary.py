"""Rotary embeddings with Hugging Face's angles and roundings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from vllm.fork_kernels import has_rounded_layers, rotate_rounded
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding, RotaryEmbeddingBase
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


def check_positions(model: nn.Module, max_model_len: int, given: str) -> None:
    """Check that each rotary embedding has angles for all positions of a text.

    Args:
        model: of text alone; towers have positions of their own.
        max_model_len: tokens of the longest text that the engine takes.
        given: the flag, as it was given.

    Raises:
        ValueError: one has fewer; what vLLM reads beyond them is no angle.
    """
    layers = (layer for layer in model.modules() if isinstance(layer, RotaryEmbeddingBase))
    tables = (getattr(layer, "cos_sin_cache", None) for layer in layers)
    least = min((len(table) for table in tables if table is not None), default=max_model_len)
    if least < max_model_len:
        raise ValueError(
            f"{given} does not go with max_model_len={max_model_len}, since vLLM has rotary angles "
            f'for {least} positions alone: use max_model_len={least}, or hf_compat="exact".'
        )


def forward_rotary(
    layer: Any, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`RotaryEmbedding.forward_native` of vLLM, as one operator for few tokens.

    Args:
        layer: whose method is that one.
        positions: int64, of the tokens.
        query: [num_tokens, heads * head_size].
        key: likewise, or None.
    """
    if key is None or positions.dim() != 1 or not has_rounded_layers(query):
        return RotaryEmbedding.forward_native(layer, positions, query, key)
    return rotate_rounded(
        positions,
        query,
        key,
        layer._match_cos_sin_cache_dtype(query),
        head_size=layer.head_size,
        is_neox=layer.is_neox_style,
    )


def use_each_head(layer: RotaryEmbeddingBase) -> None:
    """Let `layer`, which is this model's alone, rotate each head of queries of three dimensions
    (LFM2's, for one), which vLLM's kernel for CPUs takes for one head.
    """
    layer._forward_method = partial(_forward_flat, layer, layer._forward_method)


def _forward_flat(
    layer: RotaryEmbeddingBase,
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor | None]],
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if query.dim() != positions.dim() + 2:
        return forward(positions, query, key)
    rotated, rotated_key = forward(
        positions, query.flatten(-2), None if key is None else key.flatten(-2)
    )
    if key is not None and rotated_key is not None:
        rotated_key = rotated_key.view(key.shape)
    return rotated.view(query.shape), rotated_key


def takes_few_tokens_at_once(kind: type[RotaryEmbeddingBase]) -> bool:
    """Whether `forward_rotary` stands for the ``forward_native`` of a class."""
    return kind.forward_native is RotaryEmbedding.forward_native
