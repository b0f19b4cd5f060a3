"""The angles of Transformers' rotary embeddings, as the operator of all layers takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


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
    angles = rotary(x, position_ids=position_ids)
    table = torch.cat([one.flatten(0, 1)[:, : one.shape[-1] // 2] for one in angles], dim=-1)
    return Rotation(table, torch.arange(len(table)))


class TokenRotations:
    """What a model's module says of single tokens, which is the same in each step.

    Each position is asked for by itself, as a token alone asks: how PyTorch rounds a cosine may
    depend on where in a tensor it lies.

    Args:
        rotary: as ``LlamaRotaryEmbedding``, whose angles follow from the position.
    """

    def __init__(self, rotary: Any) -> None:
        self._rotary = rotary
        self._table = torch.empty(0, 0)
        self._known: set[int] = set()
        self._frequencies: torch.Tensor = rotary.inv_freq.clone()
        self._scaling: float = rotary.attention_scaling

    def __call__(self, x: torch.Tensor, positions: Sequence[int], rows: torch.Tensor) -> Rotation:
        """Return the rotations of tokens.

        Args:
            x: of the dtype and device that are asked for.
            positions: of the tokens.
            rows: the same, int64 [num_tokens].
        """
        self._forget_others()
        for position in {*positions} - self._known:
            self._find(position, x)
        return Rotation(self._table, rows)

    def _forget_others(self) -> None:
        """Keep nothing of other frequencies, which a running engine may be given."""
        frequencies, scaling = self._rotary.inv_freq, self._rotary.attention_scaling
        if scaling != self._scaling or not torch.equal(frequencies, self._frequencies):
            self._frequencies, self._scaling = frequencies.clone(), scaling
            self._known.clear()

    def _find(self, position: int, x: torch.Tensor) -> None:
        found = rotation_of(self._rotary, x, torch.tensor([[position]])).table
        table = self._table if self._known else found[:0]
        if position >= len(table):
            length = max(position + 1, 2 * len(table))
            table = torch.cat([table, found.new_zeros(length - len(table), found.shape[1])])
        table[position] = found[0]
        self._table = table
        self._known.add(position)
