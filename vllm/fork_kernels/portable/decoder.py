"""All decoder layers of a model with portable bits as one operator, on CPU.

It calls `portable_rms_norm`, `portable_product`, `portable_rotate`, `portable_append`,
`portable_attention` and `portable_gated`, one after the other, and has their bits: calling each of
them from Python takes longer than small layers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from vllm.fork_kernels.layer_weights import Epsilons
from vllm.fork_kernels.operators import specified

__all__ = [
    "DecoderSizes",
    "Places",
    "portable_decoder_layers",
]


@specified
def _portable_decoder_layers(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x)


class DecoderSizes(NamedTuple):
    """What is the same in all layers.

    Attributes:
        epsilons: of the norms.
        segments: of the products with qkv, output, gate_up and down (`PackedWeight`).
        heads: of queries.
        head_size: of queries, keys and values.
        intermediate_size: columns of the gate.
    """

    epsilons: Epsilons
    segments: tuple[int, int, int, int]
    heads: int
    head_size: int
    intermediate_size: int


class Places(NamedTuple):
    """Where the tokens of a step are, as `portable_append` and `portable_attention` take it.

    Attributes:
        slots: int64 [n].
        pages: int32 [num_sequences, max_blocks].
        query_starts: int32 [num_sequences + 1].
        lengths: int32 [num_sequences].
    """

    slots: torch.Tensor
    pages: torch.Tensor
    query_starts: torch.Tensor
    lengths: torch.Tensor


def portable_decoder_layers(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    sizes: DecoderSizes,
    positions: torch.Tensor,
    table: torch.Tensor,
    caches: Sequence[torch.Tensor],
    places: Places,
    *,
    is_interleaved: bool,
    scale: float,
    window: int,
) -> torch.Tensor:
    """Compute the decoder layers of a model.

    Args:
        x: float32, bfloat16 or float16 [n, hidden_size], contiguous, on CPU. It becomes the sum of
            itself and what all layers add but for the last one's MLP.
        weights: of the layers (`in_one_list`); of a product `PackedWeight.packed`, and its
            exponents.
        sizes: of the layers.
        positions: int64 [n], contiguous.
        table: see `portable_rotate`.
        caches: of each layer, uint8 [blocks, kv heads, block_size, 4 * head_size + 2], what
            `attention_cache_shape` says once the last two dimensions are one; changed in place.
        places: of the tokens.
        is_interleaved: see `portable_rotate`.
        scale: see `portable_attention`.
        window: likewise.

    Returns:
        What the last layer's MLP adds, [n, hidden_size].

    Raises:
        RuntimeError: lists have other lengths, or one of the operators refuses its arguments; x and
            the caches may have been written to.

    Source: ``LlamaModel.forward``.
    """
    return _portable_decoder_layers(
        *(x, weights, *sizes, positions, table, is_interleaved, scale, window, caches, *places)
    )
