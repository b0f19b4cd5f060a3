"""All decoder layers of a model with portable bits as one operator, on CPU.

It calls `portable_rms_norm`, `portable_product`, `portable_rotate`, `portable_append`,
`portable_attention` and `portable_gated`, one after the other, and has their bits: calling each of
them from Python takes longer than small layers do.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from vllm.fork_kernels import library

__all__ = [
    "DecoderSizes",
    "DecoderWeights",
    "Places",
    "ProductWeights",
    "portable_decoder_layers",
]

if library.load():

    @torch.library.register_fake("vllm_fork::portable_decoder_layers")
    def _(x: torch.Tensor, *_: object) -> torch.Tensor:
        return torch.empty_like(x)


class ProductWeights(NamedTuple):
    """The weights of a product: lists of one tensor of each layer.

    Attributes:
        packed: of `PackedWeight`.
        exponents: likewise.
        biases: [out_features]; an empty list if there are none.
    """

    packed: list[torch.Tensor]
    exponents: list[torch.Tensor]
    biases: list[torch.Tensor]


class DecoderWeights(NamedTuple):
    """What the layers compute with: lists of one tensor of each layer.

    Attributes:
        input_norms: [hidden_size].
        qkv: of queries, keys and values.
        query_norms: [head_size], of each head by itself; an empty list if there are none.
        key_norms: likewise.
        output: of what attention gives.
        post_norms: [hidden_size].
        gate_up: of the gate, and of what it is multiplied with.
        down: of these.
        caches: uint8 [blocks, kv heads, block_size, 4 * head_size + 2], what
            `attention_cache_shape` says once the last two dimensions are one; changed in place.
    """

    input_norms: list[torch.Tensor]
    qkv: ProductWeights
    query_norms: list[torch.Tensor]
    key_norms: list[torch.Tensor]
    output: ProductWeights
    post_norms: list[torch.Tensor]
    gate_up: ProductWeights
    down: ProductWeights
    caches: list[torch.Tensor]


class DecoderSizes(NamedTuple):
    """What is the same in all layers.

    Attributes:
        segments: of the products with qkv, output, gate_up and down (`PackedWeight`).
        heads: of queries.
        head_size: of queries, keys and values.
        intermediate_size: columns of the gate.
        input_epsilon: of the first norm.
        post_epsilon: of the second norm.
        head_epsilon: of the norms of heads.
    """

    segments: tuple[int, int, int, int]
    heads: int
    head_size: int
    intermediate_size: int
    input_epsilon: float
    post_epsilon: float
    head_epsilon: float


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
    weights: DecoderWeights,
    sizes: DecoderSizes,
    positions: torch.Tensor,
    table: torch.Tensor,
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
        weights: of the layers.
        sizes: likewise.
        positions: int64 [n], contiguous.
        table: see `portable_rotate`.
        places: of the tokens.
        is_interleaved: see `portable_rotate`.
        scale: see `portable_attention`.
        window: likewise.

    Returns:
        What the last layer's MLP adds, [n, hidden_size].

    Raises:
        RuntimeError: lists of weights have not one length, or one of the operators refuses its
            arguments; x and the caches may have been written to.

    Source: ``LlamaModel.forward``.
    """
    return torch.ops.vllm_fork.portable_decoder_layers.default(
        *(x, weights.input_norms, *weights.qkv, weights.query_norms, weights.key_norms),
        *(*weights.output, weights.post_norms, *weights.gate_up, *weights.down, weights.caches),
        *(*sizes, positions, table, is_interleaved, *places, scale, window),
    )
