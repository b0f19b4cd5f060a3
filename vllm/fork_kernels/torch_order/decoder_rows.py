"""The decoder layers of a model for the tokens of a step as one operator, on CPU.

It computes what `rms_norm_rounded`, `row_products`, `ordered_products` or ``linear``,
`rotate_rounded`, `append_to_pages`, `paged_sdpa`, `prompt_sdpa` and `silu_and_mul_rounded` do, one
after the other, and has their bits: calling each of them from Python takes longer than small layers
do.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch

from vllm.fork_kernels import library

__all__ = [
    "DecoderWeights",
    "LayerWeights",
    "Prompts",
    "RowOrder",
    "RowsAtOnce",
    "RowsInPages",
    "Way",
    "decoder_rows",
]

if library.load():

    @torch.library.register_fake("vllm_fork::decoder_rows")
    def _(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        return x.new_empty(x.shape), x.new_empty(x.shape)


class Prompts(NamedTuple):
    """The prompts of a step, as `prompt_sdpa` takes them.

    Attributes:
        table: int32 [num_requests, max_blocks].
        spans: int64 [num_prompts, 4], of those that it computes ``in_one``.
        library_spans: likewise, of those that PyTorch's function computes.
    """

    table: torch.Tensor
    spans: torch.Tensor
    library_spans: torch.Tensor


class RowsInPages(NamedTuple):
    """Where the tokens of a step are, as `append_to_pages` and `paged_sdpa` take it.

    Attributes:
        slots: int64 [n], of the new tokens.
        blocks: int32 [m, max_blocks], of the request of each token that is computed by itself.
        starts: int64 [m], the first token that each of these sees.
        stops: int64 [m], the token after the last one.
        first: the row of the first of them; the others are the next ones.
        prompts: what the other rows are; None if there are none.
    """

    slots: torch.Tensor
    blocks: torch.Tensor
    starts: torch.Tensor
    stops: torch.Tensor
    first: int = 0
    prompts: Prompts | None = None


class Way(IntEnum):
    """How rows of a step are multiplied at once: each as if it were alone (`RowOrder`); by PyTorch
    with each of the weights that are one here, as Hugging Face has them; by PyTorch with the whole.
    """

    BY_ROW = 0
    BY_PARTS = 1
    AT_ONCE = 2


class RowsAtOnce(NamedTuple):
    """Which rows of a step are computed at once.

    Attributes:
        products: of `qkv`, `output`, `gate_up` and `down`, each a way, the first row and the end
            for all rows in their order, one behind the other; nothing if each is by itself.
        activated: first row and end likewise; nothing if all are computed at once.
    """

    products: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]] = ((), (), (), ())
    activated: Sequence[int] = ()


_EACH_ALONE = RowsAtOnce()


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
        orders: of the products with `qkv`, `output`, `gate_up` and `down`.
        input_norm: [hidden_size].
        qkv: [queries, keys and values, hidden_size].
        qkv_bias: of `qkv`, or None.
        query_norm: [head_size], of each head of the queries, or None.
        key_norm: likewise.
        output: [hidden_size, queries].
        output_bias: of `output`, or None.
        post_norm: [hidden_size].
        gate_up: [2 * intermediate_size, hidden_size].
        gate_up_bias: of `gate_up`, or None.
        down: [hidden_size, intermediate_size].
        down_bias: of `down`, or None.
    """

    orders: tuple[RowOrder, RowOrder, RowOrder, RowOrder]
    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


class Epsilons(NamedTuple):
    """Of the norms of all layers: the first and second of a layer, and those of heads."""

    input: float
    post: float
    head: float = 0.0


class DecoderWeights:
    """What layers that follow each other compute with.

    Args:
        layers: of the same shapes and dtype, all of them with the same biases and norms of heads.
        epsilons: of their norms.
        attention_order: of `paged_sdpa`, in float32.

    Raises:
        ValueError: some layers have a tensor that others have not.
    """

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        epsilons: Epsilons,
        attention_order: torch.Tensor | None = None,
    ) -> None:
        steps = [[layer.orders[i].steps for layer in layers] for i in range(4)]
        self.arguments = (
            _all([layer.input_norm for layer in layers]),
            _all([layer.qkv for layer in layers]),
            _all([layer.qkv_bias for layer in layers]),
            _all(steps[0]),
            _all([layer.query_norm for layer in layers]),
            _all([layer.key_norm for layer in layers]),
            _all([layer.output for layer in layers]),
            _all([layer.output_bias for layer in layers]),
            _all(steps[1]),
            _all([layer.post_norm for layer in layers]),
            _all([layer.gate_up for layer in layers]),
            _all([layer.gate_up_bias for layer in layers]),
            _all(steps[2]),
            _all([layer.down for layer in layers]),
            _all([layer.down_bias for layer in layers]),
            _all(steps[3]),
            [order.number for layer in layers for order in layer.orders],
            *epsilons,
            attention_order,
        )


def _all(tensors: list[torch.Tensor | None]) -> list[torch.Tensor]:
    """Return tensors of all layers; an empty list if none has one."""
    found = [one for one in tensors if one is not None]
    if found and len(found) < len(tensors):
        raise ValueError("Some layers have a bias, norm or order that others have not.")
    return found


def decoder_rows(
    x: torch.Tensor,
    weights: DecoderWeights,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    pages: Sequence[torch.Tensor],
    places: Sequence[RowsInPages],
    *,
    is_neox: bool,
    scale: float,
    at_once: RowsAtOnce = _EACH_ALONE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute layers for the tokens of a step.

    Args:
        x: [n, hidden_size].
        weights: of the layers.
        positions: int64 [n].
        cos_sin: [positions, rotary_dim] (`rotate_rounded`).
        pages: of each layer, [num_blocks, kv heads, block_size, 2 * head_size] (`paged_sdpa`);
            keys and values are written to them.
        places: of the tokens in the pages of each layer.
        is_neox: as of `rotate_rounded`.
        scale: of the scores.
        at_once: which rows are computed at once.

    Returns:
        what the last layer adds, and the sum to which it is to be added, [n, hidden_size] both.

    Raises:
        RuntimeError: an operator refuses its arguments.

    Source: ``LlamaDecoderLayer.forward``.
    """
    kinds: dict[int, int] = {}  # layers mostly have the same place
    numbers = [kinds.setdefault(id(place), len(kinds)) for place in places]
    distinct = {id(place): place for place in places}.values()
    slots, blocks, starts, stops, firsts, prompts = zip(*distinct, strict=True)
    tables, spans, library_spans = zip(*prompts, strict=True) if prompts[0] else ((), (), ())
    return torch.ops.vllm_fork.decoder_rows.default(
        x,
        *weights.arguments,
        positions,
        cos_sin,
        is_neox,
        pages,
        slots,
        blocks,
        starts,
        stops,
        firsts,
        tables,
        spans,
        library_spans,
        numbers,
        scale,
        *at_once.products,
        at_once.activated,
    )
