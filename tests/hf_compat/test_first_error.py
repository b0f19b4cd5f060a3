"""A body is read up to its first wrong entry, and one that is right as it always was."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.hf_compat.server.first_error import hasten
from vllm.hf_compat.server.openai import (
    HFBatchChatCompletionRequest,
    HFChatCompletionRequest,
    HFCompletionRequest,
)

USER = {"role": "user", "content": "a"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ANTHROPIC = {"model": "m", "max_tokens": 3}
BODIES: list[tuple[Any, dict[str, Any], str, Any]] = [
    (HFChatCompletionRequest, {}, "messages", USER),
    (HFChatCompletionRequest, {}, "messages", {"role": "assistant", "tool_calls": [CALL]}),
    (HFChatCompletionRequest, {"messages": [USER]}, "tools", TOOL),
    (HFBatchChatCompletionRequest, {}, "messages", [USER]),
    (HFCompletionRequest, {}, "prompt", [5, 6]),
    (AnthropicMessagesRequest, ANTHROPIC, "messages", USER),
    (ResponsesRequest, {}, "input", {"type": "message", **USER}),
]
"""A class, the fields that it needs, one that is a list, and an entry of that."""


@pytest.mark.parametrize(("kind", "fields", "name", "_"), BODIES)
@pytest.mark.parametrize("wrong", [None, {"role": 3}, [[]]], ids=str)
def test_one_wrong_entry_has_as_many_errors_as_two_hundred(
    kind: Any, fields: dict[str, Any], name: str, _: Any, wrong: Any
) -> None:
    def errors(number: int) -> list[Any]:
        with pytest.raises(ValidationError) as found:
            adapter.validate_python({**fields, name: [wrong] * number})
        return [(one["loc"], one["msg"]) for one in found.value.errors()]

    adapter = hasten(TypeAdapter(kind))
    assert errors(200) == errors(1)


@pytest.mark.parametrize(("kind", "fields", "name", "entry"), BODIES)
def test_what_is_right_is_read_as_before(
    kind: Any, fields: dict[str, Any], name: str, entry: Any
) -> None:
    body = {"request_id": "1", **fields, name: [entry] * 3}
    before: Any = TypeAdapter(kind).validate_python(body)
    now = hasten(TypeAdapter(kind)).validate_python(body)
    assert type(now) is type(before)
    assert now.model_dump(warnings=False) == before.model_dump(warnings=False)
    assert now.model_fields_set == before.model_fields_set
