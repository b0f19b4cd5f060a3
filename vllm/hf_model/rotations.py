"""The angles of Transformers' rotary embeddings, as the operator of all layers takes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

_MOST_LENGTHS = 64  # of prompts, whose angles are kept


class Rotation(NamedTuple):
    """By what each token is rotated.

    Attributes:
        table: [n, rotary_dim] (`vllm.fork_kernels.rotate_rounded`).
        rows: int64 [num_tokens], of the table.
    """

    table: torch.Tensor
    rows: torch.Tensor


class Rotations:
    """What a model's module says of tokens and of prompts, which is the same in each step.

    Each is asked for as it is alone, a token by its position and a prompt by its length: how
    PyTorch rounds a cosine may depend on where in a tensor it lies.

    Args:
        rotary: as ``LlamaRotaryEmbedding``, whose angles follow from the position.
    """

    def __init__(self, rotary: Any) -> None:
        self._rotary = rotary
        self._table = torch.empty(0, 0)
        self._known: set[int] = set()  # positions, of which the table has the angles
        self._by_length: dict[int, torch.Tensor] = {}  # the angles of prompts
        self._frequencies: torch.Tensor = rotary.inv_freq.clone()
        self._scaling: float = rotary.attention_scaling

    def of_tokens(self, x: torch.Tensor, positions: Sequence[int], rows: torch.Tensor) -> Rotation:
        """Return the rotations of tokens, each of another request.

        Args:
            x: of the dtype and device that are asked for.
            positions: of the tokens.
            rows: the same, int64 [num_tokens].
        """
        self._forget_others()
        for position in {*positions} - self._known:
            self._find(position, x)
        return Rotation(self._table, rows)

    def of_prompts(self, x: torch.Tensor, lengths: Sequence[int]) -> Rotation:
        """Return the rotations of prompts, one behind the other.

        Args:
            x: of the dtype and device that are asked for.
            lengths: of the prompts, in tokens.
        """
        self._forget_others()
        own = {length: self._of_length(length, x) for length in dict.fromkeys(lengths)}
        firsts = dict(zip(own, accumulate(own, initial=0), strict=False))
        rows = [torch.arange(firsts[length], firsts[length] + length) for length in lengths]
        return Rotation(torch.cat([*own.values()]), torch.cat(rows))

    def _forget_others(self) -> None:
        """Keep nothing of other frequencies, which a running engine may be given."""
        frequencies, scaling = self._rotary.inv_freq, self._rotary.attention_scaling
        if scaling != self._scaling or not torch.equal(frequencies, self._frequencies):
            self._frequencies, self._scaling = frequencies.clone(), scaling
            self._known.clear()
            self._by_length.clear()

    def _find(self, position: int, x: torch.Tensor) -> None:
        found = self._angles(torch.tensor([[position]]), x)
        table = self._table if self._known else found[:0]
        if position >= len(table):
            length = max(position + 1, 2 * len(table))
            table = torch.cat([table, found.new_zeros(length - len(table), found.shape[1])])
        table[position] = found[0]
        self._table = table
        self._known.add(position)

    def _of_length(self, length: int, x: torch.Tensor) -> torch.Tensor:
        if length not in self._by_length:
            if len(self._by_length) >= _MOST_LENGTHS:
                self._by_length.clear()
            self._by_length[length] = self._angles(torch.arange(length)[None], x)
        return self._by_length[length]

    def _angles(self, position_ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return what the module says of int64 [1, num_tokens]: [num_tokens, rotary_dim]."""
        angles = self._rotary(x[None], position_ids=position_ids)
        return torch.cat([one[0, :, : one.shape[-1] // 2] for one in angles], dim=-1)
