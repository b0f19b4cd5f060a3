"""A decoder layer for single tokens of requests as one operator, on CPU.

It calls `rms_norm_rounded`, `row_products` or `ordered_products`, `rotate_rounded`,
`append_to_pages`, `paged_sdpa` and `silu_and_mul_rounded`, one after the other, and has their bits:
calling each of them from Python takes longer than small layers do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import library

__all__ = ["LayerWeights", "RowOrder", "RowsInPages", "decoder_layer_rows"]

if library.load():

    @torch.library.register_fake("vllm_fork::decoder_layer_rows")
    def _(
        x: torch.Tensor, residual: torch.Tensor | None, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return x.new_empty(x.shape), x.new_empty(x.shape)


class RowsInPages(NamedTuple):
    """Where the tokens of a step are, as `append_to_pages` and `paged_sdpa` take it.

    Attributes:
        slots: int64 [n], of the new tokens.
        blocks: int32 [n, max_blocks], of each one's request.
        starts: int64 [n], the first token that each sees.
        stops: int64 [n], the token after the last one.
    """

    slots: torch.Tensor
    blocks: torch.Tensor
    starts: torch.Tensor
    stops: torch.Tensor


class RowOrder(NamedTuple):
    """In which order rows are multiplied.

    Attributes:
        number: of `row_products`, in 16 bits.
        steps: of `ordered_products`, in float32: `SumOrder.tensor`.
    """

    number: int
    steps: torch.Tensor | None = None


class LayerWeights(NamedTuple):
    """What a layer computes with, in one dtype.

    Attributes:
        input_norm: [hidden_size].
        qkv: [queries, keys and values, hidden_size].
        qkv_bias: of `qkv`, or None.
        qkv_order: of its products.
        query_norm: [head_size], of each head of the queries, or None.
        key_norm: likewise.
        head_epsilon: of these two norms.
        output: [hidden_size, queries].
        output_bias: of `output`, or None.
        output_order: of its products.
        post_norm: [hidden_size].
        gate_up: [2 * intermediate_size, hidden_size].
        gate_up_bias: of `gate_up`, or None.
        gate_up_order: of its products.
        down: [hidden_size, intermediate_size].
        down_bias: of `down`, or None.
        down_order: of its products.
        input_epsilon: of the first norm.
        post_epsilon: of the second norm.
        attention_order: of `paged_sdpa`, in float32.
    """

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qkv_order: RowOrder
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    head_epsilon: float
    output: torch.Tensor
    output_bias: torch.Tensor | None
    output_order: RowOrder
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    gate_up_order: RowOrder
    down: torch.Tensor
    down_bias: torch.Tensor | None
    down_order: RowOrder
    input_epsilon: float
    post_epsilon: float
    attention_order: torch.Tensor | None


def decoder_layer_rows(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weights: LayerWeights,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    pages: torch.Tensor,
    places: RowsInPages,
    *,
    is_neox: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a layer for one token of each request.

    Args:
        x: [n, hidden_size].
        residual: likewise, what the sums of earlier layers are; None before the first one.
        weights: of the layer.
        positions: int64 [n].
        cos_sin: [positions, rotary_dim] (`rotate_rounded`).
        pages: [num_blocks, kv heads, block_size, 2 * head_size] (`paged_sdpa`); keys and
            values are written to it.
        places: of the tokens.
        is_neox: as of `rotate_rounded`.
        scale: of the scores.

    Returns:
        what the layer adds, and the sum to which it is to be added, [n, hidden_size] both.

    Raises:
        RuntimeError: one of the operators refuses its arguments.

    Source: ``LlamaDecoderLayer.forward``.
    """
    flat: list[Any] = []
    for one in weights:
        flat.extend(one) if type(one) is RowOrder else flat.append(one)
    return torch.ops.vllm_fork.decoder_layer_rows.default(
        x,
        residual,
        *flat,
        positions,
        cos_sin,
        is_neox,
        pages,
        *places,
        scale,
    )
