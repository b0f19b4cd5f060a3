"""The texts that both sides of a twin compute."""

from __future__ import annotations

import random
from collections.abc import Sequence

from vllm.twin.sizes import LONGEST_TEXT, WINDOW

NEW_TOKENS = 6
"""Computed one by one after each text."""

_FIRST_TOKEN = 4
_LAST_TOKENS = 32
"""At the vocabulary's ends, where special tokens are."""


def texts(vocab_size: int, longest: int) -> list[list[int]]:
    """Return token ids of several texts: shorter than windows, a little longer, and beyond all.

    Args:
        vocab_size: of the twin.
        longest: that it has positions for, with its answer.
    """
    draw = random.Random(0)
    most = min(longest, LONGEST_TEXT) - NEW_TOKENS
    lengths = sorted({min(most, length) for length in (5, WINDOW - 1, WINDOW + 6, most)})
    ids: Sequence[int] = range(_FIRST_TOKEN, max(vocab_size - _LAST_TOKENS, _FIRST_TOKEN + 1))
    return [draw.choices(ids, k=length) for length in lengths]
