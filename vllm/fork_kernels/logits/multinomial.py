"""Sampling on CPU with many generators at once: the tokens of ``torch.multinomial``.

``torch.multinomial(probs, 1)`` is ``argmax(probs / q)`` with exponential numbers ``q`` of the shape
of ``probs`` (ATen, ``native/Distributions.cpp``): for each token a number of the generator and its
logarithm, one after the other. Here rows have generators of their own, the words of a generator are
made many at once, and the logarithm is taken for the few tokens that may win.

A batch keeps its generators as rows of a tensor ``states``, int32 [num_states, STATE_WORDS]; see
:mod:`.mt19937`.
"""

import torch

from vllm.fork_kernels.logits import checks
from vllm.fork_kernels.operators import operator

__all__ = ["draw_tokens"]


@operator
def _draw_tokens(
    probs: torch.Tensor, states: torch.Tensor, slots: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    checks.draw_tokens(probs, states, slots, offsets)
    return probs.new_empty(probs.shape[0], dtype=torch.int64)


def draw_tokens(
    probs: torch.Tensor, states: torch.Tensor, slots: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """Draw a token of each row, the one that ``torch.multinomial(row, 1, generator=...)`` draws.

    Row i uses the vocab_size numbers that come ``offsets[i]`` numbers after the state
    ``slots[i]``. Rows that share a state must not share numbers. Each state that was used is
    changed to the one after the last number that a row has used.

    Args:
        probs: float32 [n, vocab_size], not negative, last dimension contiguous, rows at any
            distance. They need not sum to 1.
        states: int32 [num_states, STATE_WORDS], contiguous; changed in place.
        slots: int32 [n], contiguous: each row's row of ``states``; below 0 draws nothing.
        offsets: int64 [n], contiguous. Entries of rows that draw nothing are not looked at.

    All are on CPU.

    Returns:
        int64 [n]. It is -1 for a row that draws nothing, and where ``torch.multinomial`` fails
        because a probability is NaN or infinite or none is above 0; that row's numbers are used up
        all the same.

    Raises:
        RuntimeError: A dtype, shape, device or layout is none of these, a slot or the position of
            a state is out of range, or an offset is negative or among another row's numbers. No
            state is changed then.
    """
    return _draw_tokens(probs, states, slots, offsets)
