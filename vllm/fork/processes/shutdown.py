"""A server that is told to end refuses what comes, and says so to whom it cannot answer.

Why: A server that ends waits for ever for what it has not answered in its time, and gives a 500 to
  what comes.
Upstream status: Bug in 0.32.0, to be reported.
Exit condition: Upstream answers both with a 503.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from vllm.exceptions import GracefulHTTPError

_STATUS = HTTPStatus.SERVICE_UNAVAILABLE  # which clients and balancers try again elsewhere
_ENDS = "The server is shutting down: send the request to another one, or again later."


class RefusesAtEnd:
    """Middleware (ASGI) that answers every POST with a 503 once the server has been told to end.

    vLLM's renderer ends before the engine does, and what came to it then was an internal error.

    Args:
        app: answers otherwise.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of HTTP; others pass."""
        if scope.get("method") == "POST" and getattr(scope["app"].state, "is_ending", False):
            error = {"message": _ENDS, "type": _STATUS.phrase, "param": None, "code": _STATUS}
            await JSONResponse({"error": error}, _STATUS)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def refuse_what_comes(app: FastAPI) -> None:
    """Let a server that has been told to end refuse requests, and what is left when it does end.

    The HTTP server waits for all answers, without a limit, and nobody gives those that the engine
    still owes when its time is over.

    Args:
        app: the server; called in its event loop, before its engine is shut down.
    """
    app.state.is_ending = True
    if (client := app.state.engine_client) is None:
        return
    shut_down, loop = client.shutdown, asyncio.get_running_loop()

    def shutdown(timeout: float | None = None) -> None:
        shut_down(timeout=timeout)
        loop.call_soon_threadsafe(_refuse_what_is_left, client, timeout)

    client.shutdown = shutdown


def _refuse_what_is_left(client: Any, timeout: float | None) -> None:
    sentence = (
        f"The server was shut down and could not finish this request in {timeout or 0:g} s: send "
        "it to another one, or start servers with a longer --shutdown-timeout."
    )
    error = GracefulHTTPError(sentence, _STATUS)
    client.output_processor.propagate_error(error)
