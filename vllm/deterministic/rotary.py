"""Rotary embeddings with portable bits; see ``docs/numerics/operations.md``."""

from __future__ import annotations

from functools import partial

import torch

from vllm.fork_ops.portable_rotary import portable_rotate, rotary_frequencies, rotary_table
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding, RotaryEmbeddingBase


def portable_table(layer: RotaryEmbeddingBase) -> torch.Tensor | None:
    """Return the cosines and sines of a layer, float32 [positions, rotary_dim]; None if its variant
    is not specified.
    """
    if type(layer) is RotaryEmbedding:
        frequencies = rotary_frequencies(layer.rotary_dim, layer.base)
        return rotary_table(frequencies, layer.max_position_embeddings)
    return None


def is_portable_rotation(layer: RotaryEmbeddingBase) -> bool:
    """Whether `layer` was given `forward_rotary`."""
    method = layer._forward_method
    return isinstance(method, partial) and method.func is forward_rotary


def forward_rotary(
    layer: RotaryEmbeddingBase,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    *,
    table: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``RotaryEmbedding.forward`` of vLLM, in place.

    Args:
        layer: of vLLM.
        positions: int64 [num_tokens].
        query: [num_tokens, heads * head_size].
        key: the same for its own heads, or None.
        table: from `portable_table`.
    """
    positions = positions.contiguous()
    for x in (query, key):
        if x is not None:
            heads = x.view(positions.numel(), -1, layer.head_size)
            portable_rotate(heads, positions, table, is_interleaved=not layer.is_neox_style)
    return query, key
