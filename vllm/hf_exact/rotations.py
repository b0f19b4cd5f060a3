"""The angles of Transformers' rotary embeddings, as the operator of all layers takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_AT_ONCE = 64
"""Positions that are worked out together."""


class Rotation(NamedTuple):
    """By what each token is rotated.

    Attributes:
        table: [n, rotary_dim] (`vllm.fork_ops.rotate_rounded`).
        rows: int64 [num_tokens], of the table.
    """

    table: torch.Tensor
    rows: torch.Tensor


def rotation_of(rotary: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Rotation:
    """Return what a model's module says.

    Args:
        rotary: as ``LlamaRotaryEmbedding``.
        x: of the dtype and device that are asked for.
        position_ids: int64 [num_requests, num_tokens].
    """
    table = _table_of(rotary, x, position_ids)
    return Rotation(table, torch.arange(len(table)))


def _table_of(rotary: Any, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    angles = rotary(x, position_ids=position_ids)
    return torch.cat([one.flatten(0, 1)[:, : one.shape[-1] // 2] for one in angles], dim=-1)


class TokenRotations:
    """What a model's module says of single tokens, which is the same in each step.

    Args:
        rotary: as ``LlamaRotaryEmbedding``, whose angles follow from the position.
    """

    def __init__(self, rotary: Any) -> None:
        self._rotary = rotary
        self._table = torch.empty(0, 0)
        self._known: set[int] = set()  # numbers of `_AT_ONCE` positions

    def __call__(self, x: torch.Tensor, positions: Sequence[int], rows: torch.Tensor) -> Rotation:
        """Return the rotations of tokens.

        Args:
            x: of the dtype and device that are asked for.
            positions: of the tokens.
            rows: the same, int64 [num_tokens].
        """
        for part in {position // _AT_ONCE for position in positions} - self._known:
            self._find(part, x)
        return Rotation(self._table, rows)

    def _find(self, part: int, x: torch.Tensor) -> None:
        first, end = part * _AT_ONCE, (part + 1) * _AT_ONCE
        found = _table_of(self._rotary, x, torch.arange(first, end)[:, None])
        table = self._table if self._known else found[:0]
        if end > len(table):
            more = found.new_zeros(max(end, 2 * len(table)) - len(table), found.shape[1])
            self._table = torch.cat([table, more])
        self._table[first:end] = found
        self._known.add(part)
