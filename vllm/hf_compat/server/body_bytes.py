"""The most bytes of a body: what is longer is not read to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import HTTPException

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class LimitedBodies:
    """Middleware (ASGI) under which reading a body that is too long is an error, with status 400.

    Args:
        app: reads bodies.
        limit: in bytes.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of HTTP; others pass."""
        if scope["type"] == "http":
            receive = self._limited(scope, receive)
        await self._app(scope, receive, send)

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        announced = dict(scope["headers"]).get(b"content-length", b"")
        total = 0

        async def limited() -> Message:
            nonlocal total
            if announced.isdigit():
                self._check(int(announced))
            message = await receive()
            total += len(message.get("body", b""))
            self._check(total)
            return message

        return limited

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._limit:
            # Of all exceptions FastAPI passes this one on, with its sentence.
            raise HTTPException(
                400,
                f"The body may have at most {self._limit} bytes, and has more: send less, or start "
                "with a higher --max-body-bytes.",
            )
