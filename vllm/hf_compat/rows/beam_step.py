"""What a worker's beam search tells the scheduler in each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BeamStep:
    """What one step of a search decides.

    Attributes:
        tokens: the last token of each running beam.
        parents: which beam each of them continues.
        finished: the best sequences, best first; None while it goes on.
    """

    tokens: list[int]
    parents: list[int]
    finished: list[dict[str, Any]] | None
