"""Values of NumPy and PyTorch in a request, as Python's, before anything is sent anywhere.

``generate()`` takes some of them, by field: where it does, they are converted; where it does not,
or does something else for each, one sentence asks for a plain number. The counts of vLLM's
parameters have to be ints: any other kind would stop the engine.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

_LENGTHS = ("max_length", "max_new_tokens")
_TOKENS = (
    "begin_suppress_tokens",
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "pad_token_id",
    "suppress_tokens",
)
"""Fields of which `generate()` makes tensors, whatever they are."""

_NUMBERS = (
    *_LENGTHS,
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "guidance_scale",
    "length_penalty",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_beams",
    "num_return_sequences",
    "prompt_lookup_num_tokens",
    "repetition_penalty",
    "temperature",
    "top_h",
    "top_k",
    "top_p",
    "typical_p",
)
"""Fields that `generate()` compares with numbers: it fails on text, at one place or another."""

_LISTS = ("bad_words_ids", "exponential_decay_length_penalty", "sequence_bias", "stop_strings")
_ARRAYS = (np.ndarray, torch.Tensor)
_COUNTS = ("n", "max_tokens", "min_tokens", "top_k", "logprobs", "prompt_logprobs")
_IDS = ("allowed_token_ids", "stop_token_ids", "logprob_token_ids")
"""Of ``SamplingParams``."""


def use_plain_values(config: GenerationConfig) -> None:
    """Replace the values of a merged configuration by Python's, in place.

    Raises:
        VLLMValidationError: one has no plain form that `generate()` would take it for.
    """
    for name, value in vars(config).items():
        if value is None or type(value) in (bool, int, str):
            continue
        if isinstance(value, float):
            setattr(config, name, float(value))  # np.float64 is one
        elif name in _TOKENS or (name in _LISTS and not isinstance(value, _ARRAYS)):
            setattr(config, name, _plain(value))
        elif name == "stop_strings":
            setattr(config, name, value.tolist())
        elif isinstance(value, (np.generic, *_ARRAYS)) and name not in _LENGTHS:
            raise VLLMValidationError(
                f"{name} is a {_type(value)}: give a plain Python value, as .item() or .tolist() "
                "returns it.",
                parameter=name,
            )
    for name in _LENGTHS:
        setattr(config, name, _num_tokens(name, getattr(config, name)))


def refuse_text(fields: Mapping[str, Any]) -> None:
    """Refuse text in place of a number, as arguments of a command line are.

    Args:
        fields: of a configuration.

    Raises:
        VLLMValidationError: names the field.
    """
    for name in _NUMBERS:
        if isinstance(value := fields.get(name), str):
            raise VLLMValidationError(
                f"{name}={value!r:.100} is text: give a number.", parameter=name
            )


def use_whole_numbers(params: SamplingParams) -> None:
    """Make ints of counts and token ids, in place: NumPy's are none to the engine's messages.

    Raises:
        VLLMValidationError: one is no whole number, or beyond those of 64 bits.
    """
    for name in _COUNTS:
        if (value := getattr(params, name)) is not None:
            setattr(params, name, _sent(name, value))
    for name in _IDS:
        if (value := getattr(params, name)) is not None:
            setattr(params, name, _list_of_ids(name, value))


def checked_seed(seed: Any) -> int | None:
    """Return a seed that ``torch.manual_seed`` takes.

    Raises:
        VLLMValidationError: it is no whole number, or beyond those of 64 bits.
    """
    return None if seed is None else _of_64_bits("seed", seed, 1 << 64, "torch.manual_seed takes")


def _list_of_ids(name: str, value: Any) -> list[int]:
    ids = value.tolist() if isinstance(value, _ARRAYS) else value
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise VLLMValidationError(
            f"{name}={value!r:.100} is no list of token ids: give a list of ints.", parameter=name
        )
    return [_sent(name, one) for one in ids]


def _sent(name: str, value: Any) -> int:
    return _of_64_bits(name, value, 1 << 63, "a message to the engine takes")


def _num_tokens(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = value.item() if isinstance(value, (np.generic, *_ARRAYS)) else value
        if number == int(number):
            return int(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise VLLMValidationError(
        f"{name}={value!r:.100} is no number of tokens: give a whole number.", parameter=name
    )


def _of_64_bits(name: str, value: Any, end: int, takes: str) -> int:
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


def _plain(value: Any) -> Any:
    """Return a value without anything of NumPy and PyTorch in it."""
    if isinstance(value, (np.generic, *_ARRAYS)):
        return value.tolist()
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        kind = tuple if isinstance(value, tuple) else list
        return kind(_plain(one) for one in value)
    return value


def _type(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__name__}"
