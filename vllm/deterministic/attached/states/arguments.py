"""What layers with states would compute otherwise without a word; attention refuses the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...refusal import attach_refusal as refusal

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
    if isinstance(mask, torch.Tensor):
        _check_mask(mask, *tokens.shape[:2], is_first=is_first)
    if is_first and isinstance(positions, torch.Tensor) and positions.dim() == 2:
        _check_positions(positions, mask)


def _check_mask(mask: torch.Tensor, sequences: int, columns: int, *, is_first: bool) -> None:
    if mask.dim() != 2:
        raise refusal("this attention_mask", "only 2D masks with padding at the ends are specified")
    is_whole = mask.shape[1] == columns if is_first else mask.shape[1] >= columns
    if mask.shape[0] != sequences or not is_whole:
        raise refusal(
            f"an attention_mask of the shape {[*mask.shape]}",
            f"there are {sequences} sequences of {columns} tokens",
        )
    is_token = mask != 0
    begins = is_token[:, :1].sum(1) + (is_token[:, 1:] & ~is_token[:, :-1]).sum(1)
    if bool((begins > 1).any()):
        raise refusal(
            "this attention_mask",
            "only padding on the left and on the right is specified, and there is some between the "
            "tokens of a row; a prompt that is padded on the right cannot go on",
        )


def _check_positions(positions: torch.Tensor, mask: torch.Tensor | None) -> None:
    is_token = torch.ones_like(positions) if mask is None else (mask != 0).long()
    expected = is_token.cumsum(1) - 1
    if not bool(((positions == expected) | (is_token == 0)).all()):
        raise refusal(
            "these position_ids",
            "they must count from 0 at the first token of each row, as generate() makes them",
        )
