"""Bodies of JSON that nobody can read, or with numbers that no message to the engine can carry.

Why: Upstream answers some of them with status 500, and others in no form of the OpenAI API.
Upstream status: Bug in 0.32.0, to be reported (upstream-reports/nested-json-body.md).
Exit condition: Upstream answers all of them with a 400.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute, request_response

from vllm.exceptions import VLLMValidationError

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""The integers that msgpack has, in which requests go to the engine."""


def check_json_bodies(app: FastAPI) -> None:
    """Let all routes of a server refuse what `read_json` and `check_integers` refuse, in place."""
    for route in app.router.routes:
        if isinstance(route, APIRoute) and "POST" in route.methods:
            _check_bodies_of(route)


def _check_bodies_of(route: APIRoute) -> None:
    handle = route.get_route_handler()

    async def checked(request: Request) -> Response:
        if has_json(request) and await request.body():
            check_integers(await read_json(request))
        return await handle(request)

    route.app = request_response(checked)


def has_json(request: Request) -> bool:
    """Whether a request says that its body is JSON, in letters of any case."""
    return "json" in request.headers.get("content-type", "").lower()


async def read_json(request: Request) -> Any:
    """Return the body, which the request keeps for those who ask again.

    Raises:
        VLLMValidationError: it cannot be read; in one sentence why.
    """
    try:
        return await request.json()
    except (ValueError, RecursionError) as error:
        raise VLLMValidationError(why_unreadable(error)) from None


def why_unreadable(error: ValueError | RecursionError) -> str:
    """Return a sentence about a body that Python's ``json.loads`` has raised an error for."""
    if isinstance(error, UnicodeDecodeError):
        return (
            f"The body is no text in {error.encoding.upper()}: {error.reason} (byte {error.start}, "
            f"0x{error.object[error.start]:02x}); send JSON in UTF-8."
        )
    if isinstance(error, json.JSONDecodeError):
        place = f"line {error.lineno}, column {error.colno}"
        return f"The body is not JSON: {error.msg} ({place})."
    if isinstance(error, RecursionError):
        return (
            "The body has more lists and objects in each other than can be read: send a flatter "
            "one."
        )
    # Nothing else fails in json.loads than the conversion of a long integer.
    return (
        f"The body has a number of more than {sys.get_int_max_str_digits()} digits: send a smaller "
        "one."
    )


def check_integers(body: Any) -> None:
    """Refuse integers that no message to the engine can carry.

    Args:
        body: as JSON gives it; what is no object is left to others.

    Raises:
        VLLMValidationError: names the field.
    """
    if not isinstance(body, dict):
        return
    params = body.get("sampling_params")  # of /inference/v1/generate
    for prefix, fields in (("", body), ("sampling_params.", params)):
        for name, value in fields.items() if isinstance(fields, dict) else ():
            if isinstance(value, int) and not _LEAST <= value <= _MOST:
                raise VLLMValidationError(
                    f"{prefix}{name} is a number of more than 64 bits: send a smaller one.",
                    parameter=f"{prefix}{name}",
                )
