"""Validation of bodies that ends at the first wrong entry of a list.

Pydantic reports every error, and for a message as many as there are kinds of messages. A hundred
thousand numbers in their place, a body of 300 KB, are 800,000 errors or more: seconds in which the
server answers nobody, and for some classes more memory than there is. A client can read one.
"""

from __future__ import annotations

from typing import Any

from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic_core import SchemaValidator

_LISTS = ("list", "tuple", "set", "frozenset")
_NO_SCHEMAS = ("cls", "config", "default", "expected", "metadata", "serialization")
"""Keys of a schema whose values are none, whatever they look like."""


def end_at_first_error(route: APIRoute) -> None:
    """Let a route's body be read up to its first error, in place; others take it as it was."""
    if route.body_field is not None:
        hasten(route.body_field._type_adapter)


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
