"""Prompts of token ids that no message to the engine can carry, or that the model does not have.

Why: Requests with ids that are no ints are never answered, or fail without a word about the ids.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/token-ids-no-ints.md).
Exit condition: Upstream refuses token ids that are no ints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.fork_flags import ForkFlags

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def check_token_ids(vllm_config: VllmConfig, *inputs: Any) -> None:
    """Refuse ids that are no ints, with which a request fails or is never answered, and with a
    flag those that the model has no embedding for.

    Upstream takes ids that only the tokenizer has: models of pictures use them.

    Args:
        vllm_config: of the engine.
        inputs: processed, for the encoder, if there is one, and for the decoder.

    Raises:
        VLLMValidationError: names the kind of the first other one, or the id and the model's ids.
    """
    flags = ForkFlags.of(vllm_config)
    for one in inputs:
        ids: Sequence[Any] = (one or {}).get("prompt_token_ids") or ()
        if others := set(map(type, ids)) - {int}:
            name = min(kind.__name__ for kind in others)
            raise VLLMValidationError(
                f"prompt_token_ids has elements of type {name}: give a list of ints, as an array's "
                "or a tensor's tolist() returns it.",
                parameter="prompt_token_ids",
            )
        # Beside embeddings ids are not looked up.
        if ids and one["type"] != "embeds" and (flags.hf_compat or flags.is_portable):
            _check_range(ids, vllm_config.model_config.get_vocab_size())


def _check_range(ids: Sequence[int], vocab_size: int) -> None:
    for token_id in (min(ids), max(ids)):
        if vocab_size and not 0 <= token_id < vocab_size:  # some configurations have none
            raise VLLMValidationError(
                f"Token id {token_id} is not in 0..{vocab_size - 1}, which are all that the model "
                "has: make the prompt with its own tokenizer.",
                parameter="prompt_token_ids",
            )
