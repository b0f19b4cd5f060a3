"""The tokens of a step that are computed each by itself, and what attention has to know of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vllm.hf_layers.step_rows import Pieces, pieces_of

_SINGLE_TOKENS = "_hf_single_tokens"


@dataclass(frozen=True)
class SingleTokens:
    """Pieces of one row.

    Attributes:
        rows: of the step; a slice where they follow each other, else int64 [tokens].
        blocks: int32 [tokens, max_blocks], of each one's request.
        stops: int64 [tokens], how many tokens each sees.
    """

    rows: slice | torch.Tensor
    blocks: torch.Tensor
    stops: torch.Tensor
    _starts: dict[int, torch.Tensor] = field(default_factory=dict)

    def starts(self, window: int) -> torch.Tensor:
        """Return the first token that each sees, int64 [tokens].

        Args:
            window: how many it sees at most; 0 if it sees all.
        """
        if window not in self._starts:
            first = self.stops - window if window else torch.zeros_like(self.stops)
            self._starts[window] = first.clamp_min(0)
        return self._starts[window]


def single_tokens_of(metadata: Any) -> SingleTokens | None:
    """Return the single tokens of a step; None if it has none.

    Args:
        metadata: of its attention, which keeps them for the step's other layers.
    """
    if not hasattr(metadata, _SINGLE_TOKENS):
        made = _single_tokens(pieces_of(metadata), metadata.block_table)
        object.__setattr__(metadata, _SINGLE_TOKENS, made)
    found: SingleTokens | None = getattr(metadata, _SINGLE_TOKENS)
    return found


def _single_tokens(pieces: Pieces, block_table: torch.Tensor) -> SingleTokens | None:
    single = pieces.single
    if not single:
        return None
    places = [pieces.first_rows[piece] for piece in single]
    first, end = places[0], places[-1] + 1
    # A slice is a view, where indices would copy.
    rows = slice(first, end) if end - first == len(single) else torch.tensor(places)
    requests: Any = [pieces.requests[piece] for piece in single]
    if requests == [*range(len(requests))]:
        requests = slice(len(requests))
    stops = torch.tensor([pieces.seq_lens[piece] for piece in single])
    return SingleTokens(rows, block_table[requests].int(), stops)
