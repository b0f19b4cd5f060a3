"""Whole numbers of a request's parameters, of which any other kind would stop the engine."""

from __future__ import annotations

import operator
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

_COUNTS = ("n", "max_tokens", "min_tokens", "top_k", "logprobs", "prompt_logprobs")


def use_whole_numbers(params: SamplingParams) -> None:
    """Make ints of what is counted, in place: NumPy's are none to the engine's messages.

    Raises:
        VLLMValidationError: one is no whole number, or beyond those of 64 bits.
    """
    for name in _COUNTS:
        if (value := getattr(params, name)) is not None:
            setattr(params, name, _whole(name, value, 1 << 63, "a message to the engine takes"))


def checked_seed(seed: Any) -> int | None:
    """Return a seed that ``torch.manual_seed`` takes.

    Raises:
        VLLMValidationError: it is no whole number, or beyond those of 64 bits.
    """
    return None if seed is None else _whole("seed", seed, 1 << 64, "torch.manual_seed takes")


def _whole(name: str, value: Any, end: int, takes: str) -> int:
    try:
        number = int(operator.index(value))
    except TypeError:
        raise VLLMValidationError(
            f"{name}={value!r:.100} is no whole number: give an int.", parameter=name
        ) from None
    if not -(1 << 63) <= number < end:
        raise VLLMValidationError(
            f"{name}={number} is beyond what {takes}: give a number of 64 bits.", parameter=name
        )
    return number
