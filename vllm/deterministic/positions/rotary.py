"""Rotary embeddings with portable bits; see ``docs/numerics/operations.md``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vllm.deterministic.fusion import Rotator
from vllm.deterministic.positions.postponed import Rotation, leave
from vllm.deterministic.positions.rope import (
    dynamic_frequencies,
    linear_frequencies,
    llama3_frequencies,
    longrope_frequencies,
    longrope_scale,
    rotary_frequencies,
    yarn_frequencies,
    yarn_scale,
)
from vllm.fork_kernels.portable.rotary import rotary_table
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding, RotaryEmbeddingBase
from vllm.model_executor.layers.rotary_embedding.deepseek_scaling_rope import (
    DeepseekScalingRotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.dynamic_ntk_scaling_rope import (
    DynamicNTKScalingRotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.linear_scaling_rope import (
    LinearScalingRotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.phi3_long_rope_scaled_rope import (
    Phi3LongRoPEScaledRotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import (
    YaRNScalingRotaryEmbedding,
)

RotaryLayer = RotaryEmbeddingBase | Phi3LongRoPEScaledRotaryEmbedding


def is_rotary(layer: nn.Module) -> bool:
    """Whether a layer of vLLM rotates queries and keys."""
    return isinstance(layer, RotaryLayer)


def portable_rotation(layer: Any) -> PortableRotation | None:
    """Return what takes the place of a rotary embedding of vLLM; None if it is not specified."""
    table_of = _TABLES.get(type(layer))
    if table_of is None:
        return None
    is_interleaved = not getattr(layer, "is_neox_style", True)
    table = table_of(layer).to(next(layer.buffers()).device)
    return PortableRotation(table, layer.head_size, is_interleaved)


class PortableRotation(nn.Module):
    """Rotates queries and keys.

    Args:
        table: float32 [positions, rotary_dim], cosines and sines.
        head_size: of queries and keys.
        is_interleaved: whether pairs are neighbours, as in GPT-J.
    """

    def __init__(self, table: torch.Tensor, head_size: int, is_interleaved: bool) -> None:
        super().__init__()
        self.table = table
        self.head_size = head_size
        self.is_interleaved = is_interleaved
        self._rotator = Rotator()

    def forward(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rotate in place, or leave that to attention (``RotaryEmbedding.forward``).

        Args:
            positions: int64 [num_tokens].
            query: [num_tokens, heads * head_size] or [num_tokens, heads, head_size].
            key: the same for its own heads, or None.

        Returns:
            query and key.
        """
        rotation = Rotation(positions.contiguous(), self.table, self.is_interleaved)
        queries = query.view(positions.numel(), -1, self.head_size)
        if key is None:
            rotation.rotate(queries)
            return query, key
        keys = key.view(positions.numel(), -1, self.head_size)
        if self._rotator.is_postponed:
            leave(rotation, queries, keys)
        else:
            rotation.rotate(queries, keys)
            self._rotator.rotated(queries, keys)
        return query, key


def _default(layer: RotaryEmbedding) -> torch.Tensor:
    frequencies = rotary_frequencies(layer.rotary_dim, layer.base)
    return rotary_table(frequencies, layer.max_position_embeddings)


def _linear(layer: LinearScalingRotaryEmbedding) -> torch.Tensor:
    (factor,) = layer.scaling_factors
    frequencies = linear_frequencies(layer.rotary_dim, layer.base, factor)
    return rotary_table(frequencies, len(layer.cos_sin_cache))


def _dynamic(layer: DynamicNTKScalingRotaryEmbedding) -> torch.Tensor:
    length = layer.max_position_embeddings
    trained = layer.max_trained_positions
    arguments = (layer.rotary_dim, layer.base, layer.scaling_factor, length, trained)
    return rotary_table(dynamic_frequencies(*arguments), length)


def _llama3(layer: Llama3RotaryEmbedding) -> torch.Tensor:
    frequencies = llama3_frequencies(
        layer.rotary_dim,
        layer.base,
        layer.scaling_factor,
        layer.low_freq_factor,
        layer.high_freq_factor,
        layer.orig_max_position,
    )
    return rotary_table(frequencies, layer.max_position_embeddings)


def _yarn(layer: YaRNScalingRotaryEmbedding | DeepseekScalingRotaryEmbedding) -> torch.Tensor:
    frequencies = yarn_frequencies(
        layer.rotary_dim,
        layer.base,
        layer.scaling_factor,
        layer.max_position_embeddings,
        beta_fast=layer.beta_fast,
        beta_slow=layer.beta_slow,
        truncate=getattr(layer, "truncate", True),
    )
    # DeepSeek's is a quotient, which is 1 in its checkpoints.
    scale = _in_portable_bits(layer.mscale, yarn_scale(layer.scaling_factor))
    return rotary_table(frequencies, len(layer.cos_sin_cache), scale)


def _longrope(layer: Phi3LongRoPEScaledRotaryEmbedding) -> torch.Tensor:
    length, trained = layer.max_position_embeddings, layer.original_max_position_embeddings
    is_long = layer.use_long_rope
    factors = layer.long_factor if is_long else layer.short_factor
    given = layer.long_mscale if is_long else layer.short_mscale
    scale = _in_portable_bits(given, longrope_scale(length / trained, trained))
    frequencies = longrope_frequencies(layer.rotary_dim, layer.base, factors)
    return rotary_table(frequencies, length if is_long else trained, scale)


def _in_portable_bits(found: float, computed: float) -> float:
    """Return a layer's scale: `computed`, unless its model has chosen another one.

    The layer does not tell, and computed its own with the C library.
    """
    return computed if abs(found - computed) < 1e-12 * computed else found


_TABLES: dict[type[nn.Module], Callable[[Any], torch.Tensor]] = {
    RotaryEmbedding: _default,
    LinearScalingRotaryEmbedding: _linear,
    DynamicNTKScalingRotaryEmbedding: _dynamic,
    Llama3RotaryEmbedding: _llama3,
    YaRNScalingRotaryEmbedding: _yarn,
    DeepseekScalingRotaryEmbedding: _yarn,
    Phi3LongRoPEScaledRotaryEmbedding: _longrope,
}
"""By exact class: a subclass may compute something else."""
