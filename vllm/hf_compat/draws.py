"""Random draws: the tokens that HF samples for a seed.

HF samples from the global generator: one call of ``torch.multinomial`` a step for all rows of its
batch. PyTorch draws one sample of each row as ``argmax(probs / q)`` with exponential numbers ``q``
of the shape of ``probs``, whatever the probabilities are. So the numbers of a row depend only on
the seed, the step, the shape of HF's batch and the row's place in it, and a request of the engine
can take its row of each step's block at its own time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.hf_compat.batch import Rows

logger = init_logger(__name__)

_NUM_KEPT_BLOCKS = 4  # rows of one HF batch are rarely more than a step apart


class DrawStream:
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


class Draws:
    """What one request draws: its row of each block of a stream.

    Args:
        stream: of the HF batch that the request is a row of.
        row: its place there.
        num_drawn: how many steps are behind it.
    """

    def __init__(self, stream: DrawStream, row: int, num_drawn: int) -> None:
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


def draw_tokens(rows: Rows, scores: torch.Tensor) -> torch.Tensor:
    """Draw the next token of each row as ``GenerationMixin._sample`` does.

    Rows whose token is thrown away draw nothing. Where HF fails, because no token has a probability
    (NaN, or all of them forbidden), the request is ended by its first end-of-sequence id, and an
    error is logged.

    Args:
        rows: the requests.
        scores: float32 [num_rows, vocab_size], processed.

    Returns:
        int64 [num_rows].
    """
    probs = torch.nn.functional.softmax(scores, dim=-1)
    tokens = torch.div(probs, _exponential_numbers(rows, probs)).argmax(dim=-1)
    for i in (~probs.sum(dim=-1).isfinite()).nonzero()[:, 0].tolist():
        if not rows.discarded[i]:
            logger.error("hf_compat: no token has a probability, where generate() fails; ended")
        tokens[i] = next(iter(rows.states[i].request.eos_token_ids), 0)
    return tokens


def _exponential_numbers(rows: Rows, probs: torch.Tensor) -> torch.Tensor:
    """Return each row's numbers for this step, float32 [num_rows, vocab_size]."""
    seeded: Sequence[tuple[int, Draws]] = [
        (i, state.draws)
        for i, state in enumerate(rows.states)
        if state.draws is not None and not rows.discarded[i]
    ]
    if len(seeded) == len(rows.states):
        return torch.stack([draws.take() for _, draws in seeded])
    numbers = torch.empty_like(probs).exponential_(1.0)
    for i, draws in seeded:
        numbers[i] = draws.take()
    return numbers
