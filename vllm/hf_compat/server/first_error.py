"""Validation of bodies that costs what a client may ask for, and no more.

Pydantic reports every error, and for a message as many as there are kinds of messages. A hundred
thousand numbers in their place, a body of 300 KB, are 800,000 errors or more: seconds in which the
server answers nobody, and for some classes more memory than there is. A client can read one. And
what is valid is tried against each kind, so that the number of lists and objects has a limit.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute, request_response
from pydantic import TypeAdapter
from pydantic_core import SchemaValidator

from vllm.fork.flags.server_flags import ServerFlags
from vllm.fork.requests.json_bodies import check_integers, has_json, read_json
from vllm.hf_compat.server.body_limits import check_object, check_structure, check_text
from vllm.hf_compat.server.text_limits import check_texts

_LISTS = ("list", "tuple", "set", "frozenset")
_NO_SCHEMAS = ("cls", "config", "default", "expected", "metadata", "serialization")
"""Keys of a schema whose values are none, whatever they look like."""


def bound_validation(route: APIRoute, flags: ServerFlags) -> None:
    """Let a route refuse a body that cannot be read, or has too much, and read others up to their
    first error, in place. Where FastAPI knows of no body, the route takes an object for granted.
    """
    if "POST" not in route.methods:
        return
    if route.body_field is not None:
        hasten(route.body_field._type_adapter)
    handle = route.get_route_handler()

    async def checked(request: Request) -> Response:
        if has_json(request) and await request.body():
            body = await read_json(request)
            check_object(body)
            check_integers(body)
            check_structure(body, flags)
            check_texts(body, request.app.state)
            check_text(await request.body(), body)
        return await handle(request)

    route.app = request_response(checked)


def hasten(adapter: TypeAdapter[Any]) -> TypeAdapter[Any]:
    """Let an adapter end a list at its first wrong entry, in place, and return it.

    What is valid stays valid, and gives the same objects.
    """
    # Validators of classes that exist already would be taken as they are.
    adapter.validator = SchemaValidator(_hastened(adapter.core_schema), _use_prebuilt=False)
    return adapter


def _hastened(schema: Any) -> Any:
    """Return a copy of a core schema whose lists fail fast."""
    if isinstance(schema, dict):
        found = {
            key: value if key in _NO_SCHEMAS else _hastened(value) for key, value in schema.items()
        }
        return {**found, "fail_fast": True} if schema.get("type") in _LISTS else found
    if isinstance(schema, list | tuple):
        return type(schema)(map(_hastened, schema))
    return schema
