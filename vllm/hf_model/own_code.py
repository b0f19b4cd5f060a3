"""What of a Transformers model's step is this project's, and known to keep requests apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_own: ContextVar[bool] = ContextVar("is_own", default=False)


@contextmanager
def own_code() -> Iterator[None]:
    """Do what is not looked at (`Operations`)."""
    token = _is_own.set(True)
    try:
        yield
    finally:
        _is_own.reset(token)


def is_own_code() -> bool:
    """Whether `own_code` encloses this."""
    return _is_own.get()
