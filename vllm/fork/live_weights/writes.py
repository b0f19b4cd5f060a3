"""Which elements of a tensor are written to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_WRITES = {
    torch.ops.aten.copy_.default,
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.fill_.Tensor,
    torch.ops.aten.zero_.default,
}

Span = tuple[int, int]
"""Places [first, last) in the storage of a tensor, in elements."""


class Writes(TorchDispatchMode):
    """Sees the places of a tensor that are written to while it is active.

    Loaders of parameters write with ``copy_``, and fill what is padding.

    Args:
        tensor: of whose storage it is.

    Attributes:
        spans: what was written.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._storage = tensor.untyped_storage()._cdata
        self.spans: list[Span] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _WRITES and args[0].untyped_storage()._cdata == self._storage:
            self.spans += spans_of(args[0])
        return func(*args, **(kwargs or {}))


def spans_of(view: torch.Tensor) -> Iterator[Span]:
    """Yield the places of a view, in the order of its memory."""
    if view.numel() == 0:
        return
    strides = view.stride()
    outermost_first = sorted(range(view.dim()), key=lambda dim: -strides[dim])
    yield from _spans_of(view.permute(outermost_first))


def _spans_of(view: torch.Tensor) -> Iterator[Span]:
    if view.is_contiguous():
        first = int(view.storage_offset())
        yield first, first + view.numel()
        return
    for row in view.unbind():
        yield from _spans_of(row)


class Coverage:
    """Which places of a tensor have been written to, however often."""

    def __init__(self) -> None:
        self._spans: list[Span] = []  # in order, none touching another

    def add(self, spans: list[Span]) -> None:
        """Note that some places were written to."""
        merged: list[Span] = []
        for first, last in sorted([*self._spans, *spans]):
            if merged and first <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], last)
            else:
                merged.append((first, last))
        self._spans = merged

    def has(self, span: Span) -> bool:
        """Whether all places of a span were written to."""
        return any(first <= span[0] and span[1] <= last for first, last in self._spans)


def overlap(spans: list[Span], span: Span) -> bool:
    """Whether one of some spans has a place in another."""
    return any(first < span[1] and span[0] < last for first, last in spans)
