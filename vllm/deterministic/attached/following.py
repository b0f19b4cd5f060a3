"""What is made of parameters, and made anew when these have changed.

An operation in place (an optimizer's step, ``load_state_dict``, ``copy_``) raises a tensor's
version, and ``parameter.data = ...`` gives it another storage: both are seen at every use. A write
through ``parameter.data``, or by another process, changes neither. Sums of the bytes show it, and
are compared by `Following.check_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["Following"]

T = TypeVar("T")


@dataclass(frozen=True)
class _State:
    """What a parameter was when something was made of it.

    Attributes:
        storage: is not kept from being freed, but no other one gets its number.
        where: its version, address and kind.
    """

    storage: StorageWeakRef
    where: tuple[Any, ...]

    @classmethod
    def of(cls, parameter: torch.Tensor) -> _State:
        kind = (parameter.dtype, parameter.shape, parameter.stride(), parameter.device)
        where = (parameter._version, parameter.data_ptr(), *kind)
        return cls(StorageWeakRef(parameter.untyped_storage()), where)


class Following(Generic[T]):
    """Something that is made of parameters, until it is sealed.

    Args:
        make: makes it of the parameters and of what `of` gets; a function of a module, so that it
            can be copied.
        sources: modules, and the names of their parameters.

    Attributes:
        sources: likewise; none of what is sealed.
    """

    _made: T | None
    _states: list[_State]
    _options: tuple[Hashable, ...]
    _digests: list[torch.Tensor]

    def __init__(self, make: Callable[..., T], sources: list[tuple[nn.Module, str]]) -> None:
        self._make = make
        self.sources = sources
        self._forget()

    def of(self, *options: Hashable) -> T:
        """Return what is made of the parameters as they are now.

        Args:
            options: for `make`, behind the parameters.
        """
        if self._made is not None and not self.sources:
            return self._made
        parameters = self._parameters()
        states = [_State.of(parameter) for parameter in parameters]
        if self._made is None or (states, options) != (self._states, self._options):
            with torch.no_grad():
                self._made = self._make(*(one.detach() for one in parameters), *options)
                self._digests = [_digest(parameter) for parameter in parameters]
            self._states, self._options = states, options
        return self._made

    def seal(self) -> None:
        """Make it once and for all, and give None to the modules in the place of parameters."""
        self._forget()
        with torch.no_grad():
            self._made = self._make(*(one.detach() for one in self._parameters()))
        for module, name in self.sources:
            setattr(module, name, None)
        self.sources = []

    def check_bytes(self) -> None:
        """Forget what was made if a parameter was written to in a way that raises no version."""
        if self._made is None:
            return
        parameters = self._parameters()
        if [_State.of(parameter) for parameter in parameters] != self._states:
            return  # made anew in any case
        pairs = zip(parameters, self._digests, strict=True)
        if not all(torch.equal(_digest(parameter), digest) for parameter, digest in pairs):
            self._forget()

    def _forget(self) -> None:
        self._made = None
        self._states, self._options, self._digests = [], (), []

    def _parameters(self) -> list[torch.Tensor]:
        return [getattr(module, name) for module, name in self.sources]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy takes along: it makes its own, unless that is sealed."""
        made = {} if self.sources else {"_made": self._made}
        return {"_make": self._make, "sources": self.sources, **made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._forget()
        self.__dict__.update(state)


@torch.no_grad()
def _digest(parameter: torch.Tensor) -> torch.Tensor:
    """Return the sums of the bytes of each row and column, as whole numbers modulo 2^64.

    Bytes that differ have others, but for differences that cancel out along both.
    """
    rows = parameter.detach().flatten(0, -2)
    try:
        words = rows.view(torch.int64)
    except RuntimeError:  # rows of an odd size
        words = rows.contiguous().view(torch.uint8)
    return torch.cat((words.sum(0), words.sum(1)))
