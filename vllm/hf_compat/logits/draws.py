"""Random draws: the tokens that HF samples for a seed.

HF samples from the global generator: one call of ``torch.multinomial`` a step for all rows of its
batch. PyTorch draws one sample of each row as ``argmax(probs / q)`` with exponential numbers ``q``
of the shape of ``probs``, whatever the probabilities are. So the numbers of a row depend only on
the seed, the step, the shape of HF's batch and the row's place in it, and a request of the engine
can take its row of each step at its own time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch

from vllm.fork_kernels import random_state, seeded_state
from vllm.hf_compat.logits.cpu_draws import CPUDraws, CPUStream, draw_on_cpu
from vllm.hf_compat.logits.generator_draws import (
    GeneratorDraws,
    GeneratorStream,
    draw_with_generators,
)

if TYPE_CHECKING:
    from vllm.hf_compat.logits.batch import Rows

Draws = CPUDraws | GeneratorDraws
_Stream = CPUStream | GeneratorStream


class DrawSource:
    """Gives the requests of a worker their draws.

    Args:
        vocab_size: width of the logits.
        device: where HF's logits would be.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._streams: WeakValueDictionary[tuple[int, int], _Stream] = WeakValueDictionary()

    def draws(self, seed: int | None, num_rows: int, row: int, num_drawn: int) -> Draws | None:
        """Return what a request draws; None if that is from the global generator in each step.

        Args:
            seed: of ``torch.manual_seed``; None for draws that only the global generator governs.
            num_rows: rows of HF's batch.
            row: the request's place there.
            num_drawn: how many steps are behind it.
        """
        if seed is not None:
            return self._stream(seed, num_rows).draws(row, num_drawn)
        if self._device.type == "cpu":
            return CPUStream(random_state(), 1, self._vocab_size).draws(0, 0)
        return None

    def _stream(self, seed: int, num_rows: int) -> _Stream:
        """Return the stream of an HF batch, new or shared."""
        stream = self._streams.get((seed, num_rows))
        if stream is None:
            stream = (
                CPUStream(seeded_state(seed), num_rows, self._vocab_size)
                if self._device.type == "cpu"
                else GeneratorStream(seed, num_rows, self._vocab_size, self._device)
            )
            self._streams[seed, num_rows] = stream
        return stream


class NoProbabilityError(ValueError):
    """There is nothing to draw; ``torch.multinomial`` fails on it in `generate()`."""

    def __init__(self) -> None:
        super().__init__(
            "No token has a probability, and Transformers fails on it: the request forbids all of "
            "them, or the model's logits are not numbers. Allow some token."
        )


def draw_tokens(rows: Rows, scores: torch.Tensor) -> tuple[torch.Tensor, dict[int, Exception]]:
    """Draw the next token of each row as ``GenerationMixin._sample`` does.

    Rows whose token is thrown away draw nothing.

    Args:
        rows: the requests.
        scores: float32 [num_rows, vocab_size], processed.

    Returns:
        int64 [num_rows], and the error of each row that HF fails on.
    """
    probs = torch.nn.functional.softmax(scores, dim=-1)
    draws = [
        None if is_discarded else state.draws
        for state, is_discarded in zip(rows.states, rows.discarded, strict=True)
    ]
    draw = draw_on_cpu if probs.device.type == "cpu" else draw_with_generators
    tokens = draw(probs, draws)
    errors: dict[int, Exception] = {
        i: NoProbabilityError()
        for i in (tokens < 0).nonzero()[:, 0].tolist()
        if not rows.discarded[i]
    }
    return tokens.clamp_(min=0), errors
