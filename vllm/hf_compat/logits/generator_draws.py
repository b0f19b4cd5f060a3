"""Draws with torch's own generators: on every device but the CPU, which has `cpu_draws`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

_NUM_KEPT_BLOCKS = 4  # rows of one HF batch are rarely more than a step apart


class GeneratorStream:
    """The exponential numbers of one HF batch, step by step.

    Rows that ask for the same step share its block.

    Args:
        seed: of ``torch.manual_seed``.
        num_rows: rows of HF's batch.
        vocab_size: width of the logits.
        device: where HF's logits would be.
    """

    def __init__(self, seed: int, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._generator = torch.Generator(device)
        self._first_state = self._generator.manual_seed(seed).get_state()
        self._shape = (num_rows, vocab_size)
        self._device = device
        self._kept: OrderedDict[int, tuple[torch.Tensor, torch.Tensor]] = OrderedDict()

    def draws(self, row: int, num_drawn: int) -> GeneratorDraws:
        """Return what the request of a row draws after `num_drawn` steps."""
        return GeneratorDraws(self, row, num_drawn)

    def first(self) -> torch.Tensor:
        """Return the generator's state before the first step."""
        return self._first_state

    def block(self, step: int, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the numbers of a step, float32 [num_rows, vocab_size], and the state after it.

        Args:
            step: counts from 0.
            state: of the generator before this step.
        """
        kept = self._kept.get(step)
        if kept is None:
            self._generator.set_state(state)
            block = torch.empty(self._shape, device=self._device)
            block.exponential_(1.0, generator=self._generator)
            kept = self._kept[step] = (block, self._generator.get_state())
            if len(self._kept) > _NUM_KEPT_BLOCKS:
                self._kept.popitem(last=False)
        return kept


class GeneratorDraws:
    """What one request draws: its row of each block of a stream.

    Args:
        stream: of the HF batch that the request is a row of.
        row: its place there.
        num_drawn: how many steps are behind it.
    """

    def __init__(self, stream: GeneratorStream, row: int, num_drawn: int) -> None:
        self._stream = stream
        self._row = row
        self._step = 0
        self._state = stream.first()
        for _ in range(num_drawn):
            self.take()

    def take(self) -> torch.Tensor:
        """Return the numbers of the next step, float32 [vocab_size]."""
        block, self._state = self._stream.block(self._step, self._state)
        self._step += 1
        return block[self._row]


def draw_with_generators(probs: torch.Tensor, draws: Sequence[object]) -> torch.Tensor:
    """Draw the next token of each row.

    Args:
        probs: float32 [num_rows, vocab_size].
        draws: of the rows; what is no `GeneratorDraws` draws from the global generator.

    Returns:
        int64 [num_rows], -1 where no token has a probability.
    """
    tokens = torch.div(probs, _exponential_numbers(probs, draws)).argmax(dim=-1)
    return tokens.masked_fill_(~probs.sum(dim=-1).isfinite(), -1)


def _exponential_numbers(probs: torch.Tensor, draws: Sequence[object]) -> torch.Tensor:
    """Return each row's numbers for this step, float32 [num_rows, vocab_size]."""
    seeded = [(i, row) for i, row in enumerate(draws) if isinstance(row, GeneratorDraws)]
    if len(seeded) == len(draws):
        return torch.stack([row.take() for _, row in seeded])
    numbers = torch.empty_like(probs).exponential_(1.0)
    for i, row in seeded:
        numbers[i] = row.take()
    return numbers
