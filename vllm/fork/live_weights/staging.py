"""Memory for a parameter whose weights are kept in another form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vllm.fork.live_weights.packed import PackedParameter
from vllm.fork.live_weights.writes import Coverage, LateWrites, Span, Writes, overlap


class StagedParameter:
    """Takes what loaders write to a packed parameter, and hands on each part that is there.

    Args:
        form: an empty parameter of the class, the shape and the attributes that loaders expect, on
            the meta device.
        device: of the weights.
        packed: its parts.
        pack: called with the index and the rows of each part, once all of it was written.
    """

    def __init__(
        self,
        form: torch.Tensor,
        device: torch.device,
        packed: PackedParameter,
        pack: Callable[[int, torch.Tensor], None],
    ) -> None:
        self._form = form
        self._device = device
        self._parts = packed.parts(form.shape[0])
        self._pack = pack
        self._memory: torch.Tensor | None = None
        self._coverage = Coverage()
        self._begun: set[int] = set()

    @property
    def is_incomplete(self) -> bool:
        """Whether a part was begun, and is not all there."""
        return bool(self._begun)

    def load(
        self, loader: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, Writes, bool]:
        """Let a loader write (``loader(parameter, *args, **kwargs)``).

        Returns:
            what it returned, what it has written, and whether a part was packed.
        """
        memory = self._staged()
        with LateWrites(memory, self._parts) as writes:
            result = loader(memory, *args, **kwargs)
        is_changed = self._pack_what_is_there(memory.data, writes.spans, writes.undone)
        return result, writes, is_changed

    def forget_what_comes_again(self, coming: Coverage) -> None:
        """Let go of what was written of parts that are to be written as a whole."""
        row_size = self._form[0].numel()
        for part in list(self._begun):
            first, last = (row * row_size for row in self._parts[part])
            if coming.has((first, last)):
                self._coverage.remove((first, last))
                self._begun.remove(part)

    def forget(self) -> None:
        """Let go of what was written and is not whole."""
        self._memory = None
        self._coverage = Coverage()
        self._begun = set()

    def _staged(self) -> torch.Tensor:
        if self._memory is None:
            self._memory = with_data(
                self._form,
                torch.empty(self._form.shape, dtype=self._form.dtype, device=self._device),
            )
        return self._memory

    def _pack_what_is_there(
        self, memory: torch.Tensor, spans: list[Span], elsewhere: dict[int, torch.Tensor]
    ) -> bool:
        self._coverage.add(spans)
        row_size = memory[0].numel()
        places = [(first * row_size, last * row_size) for first, last in self._parts]
        touched = {part for part, span in enumerate(places) if overlap(spans, span)}
        done = {part for part in touched if self._coverage.has(places[part])}
        for part in sorted(done):
            first, last = self._parts[part]
            rows = memory[first:last]
            if part in elsewhere:
                self._coverage.remove(places[part])
                rows = elsewhere[part].view_as(rows)
            self._pack(part, rows)
        self._begun = (self._begun | touched) - done
        if not self._begun:
            self.forget()
        return bool(done)


def with_data(form: torch.Tensor, data: torch.Tensor) -> Any:
    """Return a parameter of the class and the attributes of `form`, with other numbers."""
    made: Any = nn.Parameter(data, requires_grad=False)
    made.__class__ = form.__class__
    made.__dict__ = form.__dict__.copy()
    return made


def stand_in(form: torch.Tensor, device: torch.device) -> Any:
    """Return a parameter of the shape of `form` that has memory for one number.

    Who asks a model for its parameters finds all names, shapes, dtypes and loaders; its numbers are
    elsewhere, so that it reads as NaN, and writing to it is an error.
    """
    number = torch.nan if form.dtype.is_floating_point else 0
    data = torch.full((1,), number, dtype=form.dtype, device=device)
    return with_data(form, data.expand(form.shape))
