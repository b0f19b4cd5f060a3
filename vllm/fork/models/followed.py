"""What is made of a model's parameters, and made anew once one of them is another tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")

Source = tuple[dict[str, Any], str]
"""Where something is kept: a dictionary, such as a module's parameters, and the name in it."""


class Followed(Generic[T]):
    """Something that is made of parameters, which a running engine may be given others of.

    Args:
        make: makes it of them as they are now.
        sources: where they are.
        by_memory: whether parameters in other memory are others, too.
    """

    def __init__(
        self, make: Callable[[], T], sources: Iterable[Source], *, by_memory: bool = False
    ) -> None:
        self._make = make
        self._sources = [*zip(*sources, strict=True)]  # dictionaries, and names in them
        self._by_memory = by_memory
        self._made: T | None = None
        self._found: list[Any] = []
        self._places: list[int] = []

    @property
    def current(self) -> T:
        """Return it, made of the parameters as they are now."""
        found = self._look()
        if self._made is None or any(map(operator.is_not, found, self._found)) or self._moved():
            self._made = self._make()
            self._found = self._look()  # making it may have moved them
            self._places = self._places_now()
        return self._made

    # A step asks for these; `map` goes through them faster than a loop does.

    def _look(self) -> list[Any]:
        return [*map(dict.get, *self._sources)]

    def _moved(self) -> bool:
        return self._by_memory and self._places_now() != self._places

    def _places_now(self) -> list[int]:
        return places_of(one for one in self._found if one is not None) if self._by_memory else []


def places_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return where tensors lie in memory."""
    return [*map(torch.Tensor.data_ptr, tensors)]
