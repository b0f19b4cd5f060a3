"""Receipts in the answers of the server, for bodies that ask for them."""

from __future__ import annotations

import json
from typing import Any

from fastapi.responses import JSONResponse, Response

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.server_flags import ServerFlags
from vllm.hf_compat.receipts.wishes import Book
from vllm.hf_compat.server.openai import HFNames


def wants_receipts(body: Any, path: str, flags: ServerFlags) -> bool:
    """Return whether a body asks for receipts.

    Args:
        body: of any class.
        path: of its route.
        flags: of the server.

    Raises:
        VLLMValidationError: it does, and there are none.
    """
    if not isinstance(body, HFNames) or not body.receipt:
        return False
    if not flags.receipts:
        raise VLLMValidationError(
            "There are no receipts here: start with --receipts, or leave receipt out.",
            parameter="receipt",
        )
    if path.endswith("/render"):
        raise VLLMValidationError(
            f"{path} answers nothing that could have a receipt: leave receipt out.",
            parameter="receipt",
        )
    return True


def with_receipts(answer: Response, book: Book) -> Response:
    """Return an answer whose choices have the receipts that have arrived; a refusal as it is.

    Args:
        answer: of a route of completions or chats.
        book: of the body that asked.
    """
    if not isinstance(answer, JSONResponse) or answer.status_code != 200:
        return answer
    body: dict[str, Any] = json.loads(bytes(answer.body))
    choices = sorted(body["choices"], key=lambda choice: int(choice["index"]))
    for choice, receipt in zip(choices, book.receipts(), strict=True):
        choice["receipt"] = receipt
    headers = {name: text for name, text in answer.headers.items() if name != "content-length"}
    return JSONResponse(body, headers=headers)
