"""Answers of a prompt alone (``echo`` with ``max_tokens=0``), for which upstream generates a token.

It leaves the token out of the text, and counts it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from fastapi.responses import JSONResponse, Response, StreamingResponse

from vllm.hf_compat.server.openai import HFCompletionRequest

_EVENT = "data: "


def without_generation(answer: Any, body: Any) -> Any:
    """Return an answer whose token that is not there is not counted; others as they are.

    Args:
        answer: of a route.
        body: of any class.
    """
    if not isinstance(body, HFCompletionRequest) or not body.echo or body.max_tokens != 0:
        return answer
    if isinstance(answer, StreamingResponse):
        answer.body_iterator = _corrected_events(answer.body_iterator)
        return answer
    return _corrected_answer(answer) if isinstance(answer, JSONResponse) else answer


def _corrected_answer(answer: Response) -> Response:
    if answer.status_code != 200:
        return answer
    headers = {name: text for name, text in answer.headers.items() if name != "content-length"}
    return JSONResponse(_corrected(json.loads(bytes(answer.body))), headers=headers)


async def _corrected_events(events: AsyncIterable[Any]) -> AsyncIterator[Any]:
    async for event in events:
        if isinstance(event, str) and event.startswith(_EVENT + "{"):
            yield f"{_EVENT}{json.dumps(_corrected(json.loads(event[len(_EVENT) :])))}\n\n"
        else:
            yield event


def _corrected(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer, or a part of a stream, without a token that was generated."""
    for choice in answer.get("choices", []):
        if choice.get("token_ids"):
            choice["token_ids"] = []
    if usage := answer.get("usage"):
        usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
    return answer
