"""Which prompts and which keyword arguments of `generate()` are taken, refused, or change nothing.

What is not named here is a field of ``GenerationConfig`` (`support`), ``seed`` or ``as_batch``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from vllm.exceptions import VLLMValidationError

HONOURED = frozenset(
    {
        "generation_config",
        "logits_processor",
        "negative_prompt_ids",
        "prefix_allowed_tokens_fn",
        "stopping_criteria",
    }
)
"""Arguments besides the fields of a configuration."""

HARMLESS = {
    "synced_gpus": "it says when processes that share a model stop, not what they answer",
    "tokenizer": "stop strings are looked for with the engine's, which is the model's",
    "trust_remote_code": "it allows the code that custom_generate names, which is refused",
}
"""Arguments that change nothing here, and why."""

_GIVE = 'give the text, or {"prompt_token_ids": ids} with a list of ints for each prompt'
_PROMPT = "the prompt is the first argument of LLM.generate(): text or token ids"
_DRAFTS = (
    "drafts are the engine's: LLM(..., speculative_config=...), with which the tokens are the same"
)
_MASK = (
    "padding is not part of a prompt here: give the prompts without it, and as_batch=True if they "
    "are to be answered as one padded batch"
)

REFUSED = {
    "inputs": _PROMPT,
    "input_ids": _PROMPT,
    "inputs_embeds": 'the prompt is {"prompt_embeds": ...} here, with enable_prompt_embeds=True',
    "past_key_values": "the engine has a KV cache of its own: give the whole prompt",
    "position_ids": "positions count from the prompt's first token",
    "attention_mask": _MASK,
    "negative_prompt_attention_mask": _MASK,
    "assistant_model": _DRAFTS,
    "assistant_tokenizer": _DRAFTS,
    "streamer": "tokens come one by one from AsyncLLM.generate() or from the server",
    "custom_generate": "it replaces generate() by other code",
}
"""Arguments that would have to change something, and what to do instead."""


def _is_all_ones(value: Any) -> bool:
    try:
        mask = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return bool((mask == 1).all())


_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "attention_mask": _is_all_ones,
    "negative_prompt_attention_mask": _is_all_ones,
}
"""Values of refused arguments, besides None, that say nothing."""


def without_harmless(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that say something about an answer.

    Raises:
        VLLMValidationError: one would have to be honoured, and is not.
    """
    kept = {}
    for name, value in arguments.items():
        if name in HARMLESS:
            continue
        if name not in REFUSED:
            kept[name] = value
        elif value is not None and not _NEUTRAL.get(name, lambda value: False)(value):
            raise VLLMValidationError(
                f"hf_compat does not honour generate()'s argument {name}: {REFUSED[name]}."
            )
    return kept


def check_prompts(prompts: Any) -> None:
    """Refuse what a tokenizer returns: vLLM would take the keys of its dictionary for prompts.

    Args:
        prompts: as in ``LLM.generate``, one or a list.

    Raises:
        VLLMValidationError: says what to give instead.
    """
    for one in prompts if isinstance(prompts, list | tuple) else [prompts]:
        if isinstance(one, Mapping) and "prompt_token_ids" in one:
            one = one["prompt_token_ids"]
        if isinstance(one, torch.Tensor | np.ndarray):
            raise VLLMValidationError(f"A prompt is of type {type(one).__name__}: {_GIVE}.")
        if isinstance(one, Mapping) and "input_ids" in one:
            raise VLLMValidationError(
                f"A prompt is of type {type(one).__name__} with input_ids, as a tokenizer returns "
                f"them: {_GIVE}."
            )
