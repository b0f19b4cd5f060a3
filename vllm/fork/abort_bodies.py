"""Bodies of ``/abort_requests`` that upstream would fail on: a 400 with the reason."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.routing import APIRoute

_PATHS = ("/inference/v1/abort_requests", "/abort_requests")


def check_abort_bodies(app: FastAPI) -> None:
    """Let the routes of a server that abort requests look at a body before they use it."""
    routes = app.router.routes
    for i, route in enumerate(routes):
        if isinstance(route, APIRoute) and route.path in _PATHS:
            app.router.add_api_route(
                route.path,
                _checking(route.endpoint),
                name=route.name,
                methods=route.methods,
                dependencies=route.dependencies,
            )
            routes[i] = routes.pop()


def _checking(upstream: Callable[[Request], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(upstream)
    async def endpoint(raw_request: Request) -> Any:
        try:
            body = await raw_request.json()  # kept by the request for those who ask again
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"The body is not JSON: {error}.") from None
        ids = (body.get("request_ids") or []) if isinstance(body, dict) else None
        if not (isinstance(ids, list | str) and all(isinstance(one, str) for one in ids)):
            raise HTTPException(
                400, 'The body must be an object with a list of texts: {"request_ids": ["..."]}.'
            )
        return await upstream(raw_request)

    return endpoint
