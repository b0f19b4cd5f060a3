"""Who wants receipts: every request of a program, and of a server's those whose body asks.

A server's answers are made by upstream's code, which has no place for a receipt. So a route that is
asked for receipts opens a `Book`, in which those of its requests arrive, and puts them into its
answer.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any


class Book:
    """The receipts of the requests that one body has become."""

    def __init__(self) -> None:
        self._order: list[str] = []
        self._found: dict[tuple[str, int], dict[str, Any]] = {}

    def expect(self, request_id: str) -> None:
        """Let the receipts of a request arrive here.

        Args:
            request_id: as its caller knows it.
        """
        if request_id not in self._order:
            self._order.append(request_id)
        _BOOKS[request_id] = self

    def receipts(self) -> list[dict[str, Any]]:
        """Return the receipts, by the order of the requests and of the sequences of each."""
        place = {request_id: i for i, request_id in enumerate(self._order)}
        return [self._found[key] for key in sorted(self._found, key=lambda k: (place[k[0]], k[1]))]

    def close(self) -> None:
        """Let nothing arrive any more."""
        for request_id in self._order:
            _BOOKS.pop(request_id, None)


_BOOKS: dict[str, Book] = {}
_EVERYBODY: Any = object()
_WISH: ContextVar[Any] = ContextVar("receipts", default=_EVERYBODY)


def wish_for_receipts(receipts: bool) -> Book | None:
    """Say for the rest of this context whether the requests that come into being want receipts.

    Args:
        receipts: whether they do.

    Returns:
        Where they arrive, until it is closed; None if there are none.
    """
    book = Book() if receipts else None
    _WISH.set(book)
    return book


def wants_receipt() -> bool:
    """Whether a request of this context wants a receipt."""
    return _WISH.get() is not None


def expect_receipt(request_id: str) -> None:
    """Let the receipt of a request of this context arrive in its book, if it has one."""
    if isinstance(book := _WISH.get(), Book):
        book.expect(request_id)


def deliver_receipt(request_id: str, index: int, receipt: dict[str, Any]) -> None:
    """Put a receipt into the book that awaits it, if there is one.

    Args:
        request_id: as its caller knows it.
        index: of the sequence among those of the request.
        receipt: of its answer.
    """
    if (book := _BOOKS.get(request_id)) is not None:
        book._found[request_id, index] = receipt
