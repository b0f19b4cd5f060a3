"""The decoder layers of a model for the tokens of a step as one operator, on CPU.

It computes what `rms_norm_rounded`, `row_products`, `ordered_products` or ``linear``,
`rotate_rounded`, `append_to_pages`, `paged_sdpa`, `prompt_sdpa` and `silu_and_mul_rounded` do, one
after the other, and has their bits: calling each of them from Python takes longer than small layers
do.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import chain
from typing import NamedTuple

import torch

from vllm.fork_kernels.layer_weights import Epsilons, LayerWeights, in_one_list
from vllm.fork_kernels.operators import operator

__all__ = [
    "DecoderWeights",
    "Orders",
    "Prompts",
    "RowsAtOnce",
    "RowsInPages",
    "Way",
    "decoder_rows",
]


@operator
def _decoder_rows(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
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

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of them; those of prompts are empty where there are none."""
        prompts = self.prompts or (self.slots[:0],) * 3
        return self.slots, self.blocks, self.starts, self.stops, *prompts


class Way(IntEnum):
    """How rows of a step are multiplied at once.

    Each as if it were alone (`Orders`); by PyTorch with each of the weights that are one here, as
    Hugging Face has them; by PyTorch with the whole.
    """

    BY_ROW = 0
    BY_PARTS = 1
    AT_ONCE = 2


class RowsAtOnce(NamedTuple):
    """Which rows of a step are computed at once.

    Attributes:
        products: for all rows of each product, one part behind the other: the product, of qkv,
            output, gate_up and down, its way, the first row and the end; nothing if each row is by
            itself.
        activated: first row and end likewise; nothing if all are computed at once.
    """

    products: Sequence[int] = ()
    activated: Sequence[int] = ()

    @staticmethod
    def of(
        products: Sequence[Sequence[tuple[int, int, int]]], activated: Sequence[int] = ()
    ) -> RowsAtOnce:
        """Return it of the parts of each product: way, first row and end."""
        parts = [(i, *part) for i, own in enumerate(products) for part in own]
        return RowsAtOnce([*chain.from_iterable(parts)], activated)


_EACH_ALONE = RowsAtOnce()

Orders = tuple[int, int, int, int]
"""Of `row_products`, in 16 bits, with a layer's qkv, output, gate_up and down. In float32 it is
`ProductWeights.how`: the steps of `ordered_products`, `SumOrder.tensor`."""


class DecoderWeights:
    """What layers that follow each other compute with.

    Args:
        layers: of the same shapes and dtype.
        orders: of each layer.
        epsilons: of their norms.
        attention_order: of `paged_sdpa`, in float32.
    """

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        orders: Sequence[Orders],
        epsilons: Epsilons,
        attention_order: torch.Tensor | None = None,
    ) -> None:
        numbers = [*chain.from_iterable(orders)]
        self.arguments = (in_one_list(layers), [*epsilons], numbers, attention_order)


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
    return _decoder_rows(
        x,
        *weights.arguments,
        positions,
        cos_sin,
        is_neox,
        scale,
        pages,
        [one for place in distinct for one in place.tensors],
        [place.first for place in distinct],
        numbers,
        at_once.products,
        at_once.activated,
    )
