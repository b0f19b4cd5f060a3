"""A row as a request to a route of the server, and its answer as a line of the output.

Both have the form of OpenAI's batch files; a row may also hold the fields of a body itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vllm.bulk.rows import Row

URLS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/score",
    "/v1/rerank",
    "/score",
    "/rerank",
)
"""The routes that a row may name: those that answer, and change nothing of the server."""

_OF_BATCHES = {"custom_id", "method", "url", "body"}


@dataclass(frozen=True)
class Task:
    """A request.

    Attributes:
        index: of its row.
        custom_id: by which its answer is known: the row's, or its index.
        url: the route.
        body: what is posted there, JSON.
        crc: of the row.
    """

    index: int
    custom_id: str
    url: str
    body: bytes
    crc: int = 0


@dataclass(frozen=True)
class Answer:
    """What came back, as the output shows it.

    Attributes:
        index: of the row.
        is_error: whether the line has an error instead of an answer.
        prompt_tokens: of the request, as the server counts them.
        completion_tokens: of all answers to it.
        line: JSON, without a line end.
        crc: of the row that it is the answer to.
    """

    index: int
    is_error: bool
    prompt_tokens: int
    completion_tokens: int
    line: str
    crc: int = 0


def custom_id_of(row: Row) -> str:
    """Return by what name the answer to a row is known: the row's own, or its index."""
    fields = row.fields or {}
    for name in ("custom_id", "id"):
        if _is_name(fields.get(name)):
            return str(fields[name])
    return str(row.index)


def _is_name(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def task_of(row: Row, *, receipts: bool = False) -> Task:
    """Return the request that a row holds.

    Args:
        row: as it was read.
        receipts: whether answers have receipts, unless the row says otherwise.

    Raises:
        ValueError: says what is wrong with the row.
    """
    if row.fields is None:
        raise ValueError(row.problem)
    fields = row.fields
    for name in ("custom_id", "id"):
        if not _is_name(fields.get(name)) and fields.get(name) is not None:
            raise ValueError(f"{name} is {fields[name]!r:.100}: write a text or a whole number.")
    url, body = _of_batch(fields) if "url" in fields or "body" in fields else _plain(fields)
    if body.get("stream"):
        raise ValueError("stream: a file has no streams: leave the field out.")
    if receipts and url in URLS[:2]:
        body = {"receipt": True, **body}
    try:
        data = json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The row cannot be written as JSON: {error}.") from None
    return Task(row.index, custom_id_of(row), url, data, row.crc)


def _of_batch(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return route and body of a line of OpenAI's batches."""
    if unknown := fields.keys() - _OF_BATCHES:
        raise ValueError(
            f"{min(unknown)} is no field of a batch's line, which has "
            f"{', '.join(sorted(_OF_BATCHES))}: write it into the body."
        )
    url, body = fields.get("url"), fields.get("body")
    if fields.get("method", "POST") != "POST":
        raise ValueError(f"method is {fields['method']!r:.100}: write POST, or leave it out.")
    if url not in URLS:
        raise ValueError(f"url is {url!r:.100}: write one of {', '.join(URLS)}.")
    if not isinstance(body, dict):
        raise ValueError("body is no JSON object: write the fields of the request into it.")
    return url, body


def _plain(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return route and body of a row that holds the body's fields itself."""
    body = {name: value for name, value in fields.items() if name not in ("custom_id", "id")}
    if ("prompt" in body) == ("messages" in body):
        raise ValueError(
            "A row has a prompt, or messages, or the url and body of a batch's line: write one of "
            "them."
        )
    return ("/v1/completions" if "prompt" in body else "/v1/chat/completions"), body


def answer_to(task: Task, status: int, body: Any) -> Answer:
    """Return the line of an answer of the server.

    Its bytes depend on the answer alone: ids count rows, and nothing says when it was.

    Args:
        task: the request.
        status: of HTTP.
        body: of the response, parsed.
    """
    is_error = status != 200
    if is_error and not (isinstance(body, dict) and isinstance(body.get("error"), dict)):
        message = f"This model has no {task.url}." if status == 404 else str(body)
        body = {"error": {"message": message, "type": None, "param": None, "code": status}}
    usage = body.get("usage") or {}
    for name in ("created", "created_at"):
        if name in body:
            body[name] = 0
    response = {"status_code": status, "request_id": f"bulk-{task.index}", "body": body}
    return Answer(
        task.index,
        is_error,
        usage.get("prompt_tokens") or 0,
        usage.get("completion_tokens") or 0,
        _line(task.index, task.custom_id, response, body.get("error") if is_error else None),
        task.crc,
    )


def answer_without_request(row: Row, problem: str) -> Answer:
    """Return the line of a row that nothing could be asked for, in the form of a refusal."""
    error = {"message": problem, "type": "BadRequestError", "param": None, "code": 400}
    response = {
        "status_code": 400,
        "request_id": f"bulk-{row.index}",
        "body": {"error": error},
    }
    line = _line(row.index, custom_id_of(row), response, error)
    return Answer(row.index, True, 0, 0, line, row.crc)


def _line(index: int, custom_id: str, response: dict[str, Any], error: Any) -> str:
    fields = {
        "id": f"bulk-{index}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    line = json.dumps(fields, ensure_ascii=False)
    is_text = line.isascii() or not any("\ud800" <= one <= "\udfff" for one in line)
    return line if is_text else json.dumps(fields)  # halves of surrogate pairs have no UTF-8
