"""Where the rows of a step are in the pages of a layer, for the operator of all decoder layers."""

from __future__ import annotations

from typing import Any

import torch

from vllm.fork_kernels.torch_order.decoder_rows import Prompts, RowsInPages
from vllm.hf_layers.attention.paged_attention import Heads
from vllm.hf_layers.attention.prompt_attention import spans_by_way
from vllm.hf_layers.attention.single_tokens import single_tokens_of
from vllm.hf_layers.products.row_counts import FEW
from vllm.hf_layers.step_rows import pieces_of

MOST_ROWS = FEW
"""More single tokens are multiplied by the library of matrix products (`ManyRows`), beside which
calls of modules take little time.
"""

_PLACES = "_hf_places_of_rows"


def rows_in_pages(
    metadata: Any, slots: torch.Tensor | None, window: int, num_rows: int, heads: Heads
) -> RowsInPages | None:
    """Return where rows are, if they are all of a step that the operator computes.

    Args:
        metadata: of attention, which keeps the answer for the step's other layers; or None.
        slots: int64 [num_rows or more], where keys and values are written; or None.
        window: how many tokens each sees at most; 0 if it sees all.
        num_rows: of the layer's input.
        heads: of the attention.
    """
    if metadata is None or slots is None:
        return None
    kept: dict[int, tuple[Any, RowsInPages | None]] = vars(metadata).setdefault(_PLACES, {})
    if window not in kept or kept[window][0] is not slots:
        kept[window] = slots, _found(metadata, slots, window, num_rows, heads)
    return kept[window][1]


def _found(
    metadata: Any, slots: torch.Tensor, window: int, num_rows: int, heads: Heads
) -> RowsInPages | None:
    pieces = pieces_of(metadata)
    if pieces.first_rows[-1] != num_rows:
        return None
    single = single_tokens_of(metadata)
    if single is None:
        blocks, rows = metadata.block_table[:0], slice(0, 0)
        starts = stops = slots.new_empty(0)
    elif isinstance(single.rows, slice) and len(single.stops) <= MOST_ROWS:
        blocks, rows = single.blocks, single.rows
        starts, stops = single.starts(window), single.stops
    else:
        return None
    prompts = None
    if pieces.several:
        if window and pieces.longest >= window:
            return None  # a mask is needed
        spans, library_spans = spans_by_way(heads, pieces.spans_of_several)
        prompts = Prompts(metadata.block_table, spans, library_spans)
    return RowsInPages(slots[:num_rows], blocks, starts, stops, rows.start, prompts)
