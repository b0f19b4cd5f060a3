"""Prompts of token ids that no message to the engine can carry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.exceptions import VLLMValidationError


def check_token_ids(*inputs: Any) -> None:
    """Refuse ids that are no ints, with which the engine's process would end, or never answer.

    Args:
        inputs: processed, for the encoder, if there is one, and for the decoder.

    Raises:
        VLLMValidationError: names the kind of the first other one.
    """
    for one in inputs:
        ids: Iterable[Any] = (one or {}).get("prompt_token_ids") or ()
        if others := set(map(type, ids)) - {int}:
            name = min(kind.__name__ for kind in others)
            raise VLLMValidationError(
                f"prompt_token_ids has elements of type {name}: give a list of ints, as an array's "
                "or a tensor's tolist() returns it.",
                parameter="prompt_token_ids",
            )
