"""Draws on CPU: generators without torch's loop over the numbers.

The kernels are in `vllm.fork_kernels.logits.multinomial`.

The numbers of an HF batch are one sequence: step by step, and row by row in each step. A request
knows where its next ones begin, and a state of the generator somewhere before that. Requests that
have the same state of the same batch go through the sequence together, so that the rows of an HF
batch that take their steps at the same time make every number once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vllm import fork_kernels


@dataclass(frozen=True, eq=False)
class _Place:
    """A place in the sequence: `state`, int32 [STATE_WORDS], comes after `position` numbers.

    It is no tensor, because copying hundreds of small tensors takes a noticeable part of a step.
    """

    state: np.ndarray
    position: int


class CPUStream:
    """The numbers of one HF batch.

    Args:
        state: of HF's generator before the first step, int32 [STATE_WORDS].
        num_rows: rows of HF's batch.
        vocab_size: width of the logits.
    """

    def __init__(self, state: torch.Tensor, num_rows: int, vocab_size: int) -> None:
        self.start = _Place(state.numpy(), 0)
        self.num_rows = num_rows
        self.vocab_size = vocab_size

    def draws(self, row: int, num_drawn: int) -> CPUDraws:
        """Return what the request of a row draws after `num_drawn` steps."""
        return CPUDraws(self, row, num_drawn)


class CPUDraws:
    """What one request draws: its row of each step of a stream.

    Args:
        stream: of the HF batch that the request is a row of.
        row: its place there.
        num_drawn: how many steps are behind it.
    """

    def __init__(self, stream: CPUStream, row: int, num_drawn: int) -> None:
        self._stream = stream  # rows that enter later find the same start
        self._step_size = stream.num_rows * stream.vocab_size
        self.position = num_drawn * self._step_size + row * stream.vocab_size
        self.place = stream.start

    def go_on(self, place: _Place) -> None:
        """Count a step, and remember a place unless it is beyond the next one."""
        self.position += self._step_size
        if place.position <= self.position:
            self.place = place


def draw_on_cpu(probs: torch.Tensor, draws: Sequence[object]) -> torch.Tensor:
    """Draw the next token of each row.

    Args:
        probs: float32 [num_rows, vocab_size].
        draws: of the rows; what is no `CPUDraws` draws nothing.

    Returns:
        int64 [num_rows], -1 where nothing is drawn or no token has a probability.
    """
    drawing = {i: row for i, row in enumerate(draws) if isinstance(row, CPUDraws)}
    slots, offsets = [-1] * len(draws), [0] * len(draws)
    walks: dict[tuple[_Place, int], int] = {}  # the places to start from, each for one generator
    equal: dict[tuple[_Place, int], int] = {}  # how many requests want the same numbers
    for i, row in drawing.items():
        wanted = (row.place, row.position)
        equal[wanted] = equal.get(wanted, 0) + 1
        slots[i] = walks.setdefault((row.place, equal[wanted]), len(walks))
        offsets[i] = row.position - row.place.position
    states = np.stack([place.state for place, _ in walks])
    tokens = fork_kernels.draw_tokens(
        probs,
        torch.from_numpy(states),
        torch.tensor(slots, dtype=torch.int32),
        torch.tensor(offsets, dtype=torch.int64),
    )
    _remember(drawing, slots, states, probs.shape[1])
    return tokens


def _remember(
    drawing: dict[int, CPUDraws], slots: Sequence[int], states: np.ndarray, vocab_size: int
) -> None:
    ends = [0] * len(states)
    for i, row in drawing.items():
        ends[slots[i]] = max(ends[slots[i]], row.position + vocab_size)
    # Copies: a request that waits would keep the states of a whole batch.
    places = [_Place(state.copy(), end) for state, end in zip(states, ends, strict=True)]
    for i, row in drawing.items():
        row.go_on(places[slots[i]])
