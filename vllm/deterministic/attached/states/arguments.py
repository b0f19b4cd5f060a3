"""What layers with states would compute otherwise without a word; attention refuses the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...refusal import attach_refusal as refusal
from ..layout import check_positions, ends_of_rows

__all__ = ["check_arguments"]

_OF_PACKED = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")


def check_arguments(tokens: Any, options: Mapping[str, Any], *, is_first: bool) -> None:
    """Refuse masks and positions that the layers do not look at.

    Args:
        tokens: [sequences, columns, ...], what a model is given; None if that is not known.
        options: of its forward.
        is_first: whether no token came before.

    Raises:
        ValueError: sequences are packed, positions are not counted from the first token of a row,
            or the mask is none of padding on the left and on the right.
    """
    for name in _OF_PACKED:
        if options.get(name) is not None:
            raise refusal(name, "packed sequences are not specified: give each a row of its own")
    mask, positions = options.get("attention_mask"), options.get("position_ids")
    if tokens is None:
        return
    sequences, columns = tokens.shape[:2]
    starts = torch.zeros(sequences, dtype=torch.long)
    ends = starts + columns
    if isinstance(mask, torch.Tensor):
        _check_shape(mask, sequences, columns, is_first=is_first)
        starts, ends = ends_of_rows(mask.cpu() != 0, mask.shape[1])
    if is_first and isinstance(positions, torch.Tensor) and positions.dim() == 2:
        column = torch.arange(columns)
        expected = column - starts[:, None]
        check_positions(positions, expected, (expected >= 0) & (column < ends[:, None]))


def _check_shape(mask: torch.Tensor, sequences: int, columns: int, *, is_first: bool) -> None:
    if mask.dim() != 2:
        raise refusal("this attention_mask", "only 2D masks with padding at the ends are specified")
    is_whole = mask.shape[1] == columns if is_first else mask.shape[1] >= columns
    if mask.shape[0] != sequences or not is_whole:
        raise refusal(
            f"an attention_mask of the shape {[*mask.shape]}",
            f"there are {sequences} sequences of {columns} tokens",
        )
