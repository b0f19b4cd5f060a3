"""Texts that no engine has room for: refused by their length, before they are made into tokens.

Upstream does so for most prompts. Others (``/tokenize``, or with ``truncate_prompt_tokens``) it
tokenizes to their end, megabytes in seconds, for which all others wait that have a text, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm.exceptions import VLLMValidationError

_FIELDS = (
    "prompt", "input", "instructions", "messages", "system", "content", "text", "query", "items"
)  # fmt: skip


def check_texts(body: Any, state: Any) -> None:
    """Refuse a body with a text that is longer than all tokens of a context can be.

    Args:
        body: as JSON gives it.
        state: of the server; one that only renders prompts has no engine, and no limit here.

    Raises:
        VLLMValidationError: names the length and the limit, in characters.
    """
    client = getattr(state, "engine_client", None)
    longest = max(map(len, _texts(body)), default=0) if isinstance(body, dict) else 0
    if client is None or not longest:
        return
    tokenizer = client.input_processor.tokenizer
    if tokenizer is None:
        return
    length = client.model_config.max_model_len
    limit = length * tokenizer.max_chars_per_token
    if longest > limit:
        raise VLLMValidationError(
            f"A text of {longest} characters is longer than max_model_len={length} tokens, which "
            f"hold {limit} at most: send less of it."
        )


def _texts(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is a prompt, or a part of one."""
    waiting = [body[name] for name in _FIELDS if name in body]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting.extend(one[name] for name in _FIELDS if name in one)
        elif isinstance(one, list) and one and not isinstance(one[0], int):
            waiting.extend(one)
