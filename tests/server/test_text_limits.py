"""Texts that are longer than a context are refused before they are made into tokens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.requests import post

LONG = "def f(x): return x\n" * 300_000  # 5.7 MB
CHAT = [{"role": "user", "content": LONG}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": LONG}]}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": LONG, "truncate_prompt_tokens": 8}),
        ("/v1/completions", {"prompt": ["def", LONG], "truncate_prompt_tokens": 8}),
        ("/v1/chat/completions", {"messages": CHAT, "truncate_prompt_tokens": 8}),
        ("/v1/chat/completions", {"messages": PARTS, "truncate_prompt_tokens": 8}),
        ("/v1/chat/completions/batch", {"messages": [CHAT]}),
        ("/v1/responses", {"input": LONG}),
        ("/v1/messages", {"max_tokens": 2, "messages": CHAT}),
        ("/tokenize", {"prompt": LONG}),
        ("/tokenize", {"messages": CHAT}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_text_that_no_context_holds(server: str, path: str, fields: dict[str, Any]) -> None:
    status, answer = post(f"{server}{path}", {"model": "tiny", **fields})
    assert status == 400, answer
    assert "is longer than max_model_len=2048 tokens, which hold" in answer["error"]["message"]


def test_a_text_that_a_context_may_hold_is_cut(server: str) -> None:
    body = {"model": "tiny", "prompt": LONG[:79_000], "truncate_prompt_tokens": 8, "max_tokens": 1}
    status, answer = post(f"{server}/v1/completions", body)
    assert status == 200, answer
    assert answer["usage"]["prompt_tokens"] == 8
