"""Prompts of ``LLM.generate`` as users of Transformers have them in their hands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from vllm.exceptions import VLLMValidationError

_INSTEAD = 'give the text, or {"prompt_token_ids": ids} with a list of ints for each prompt'


def check_prompts(prompts: Any) -> None:
    """Refuse what a tokenizer returns: vLLM would take the keys of its dictionary for prompts.

    Args:
        prompts: as in ``LLM.generate``, one or a list.

    Raises:
        VLLMValidationError: says what to give instead.
    """
    for one in prompts if isinstance(prompts, list | tuple) else [prompts]:
        if isinstance(one, torch.Tensor | np.ndarray):
            raise VLLMValidationError(f"A prompt is of type {type(one).__name__}: {_INSTEAD}.")
        if isinstance(one, Mapping) and "input_ids" in one:
            raise VLLMValidationError(
                f"A prompt is of type {type(one).__name__} with input_ids, as a tokenizer returns "
                f"them: {_INSTEAD}."
            )
