"""Which elements of a tensor are written to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
        num_copied: how many numbers came from elsewhere.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._storage = tensor.untyped_storage()._cdata
        self.spans: list[Span] = []
        self.num_copied = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _WRITES and args[0].untyped_storage()._cdata == self._storage:
            self.note(func, args[0])
        return func(*args, **(kwargs or {}))

    def note(self, func: Any, target: torch.Tensor) -> None:
        """Note what an operator writes."""
        self.spans += spans_of(target)
        if func is torch.ops.aten.copy_.default:
            self.num_copied += target.numel()


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


class LateWrites(Writes):
    """Likewise, and leaves a copy of whole parts undone as long as nothing looks at the tensor.

    What is copied may be read where it lies, and the memory of the tensor never be touched.

    Args:
        tensor: contiguous, at the beginning of its storage.
        parts: rows [first, last) of the tensor that matter only as a whole.

    Attributes:
        undone: what was to be copied to a part and was not, by the part's index.
    """

    def __init__(self, tensor: torch.Tensor, parts: list[tuple[int, int]]) -> None:
        super().__init__(tensor)
        self._tensor = tensor.detach()
        row_size = tensor[0].numel()
        self._places = [(first * row_size, last * row_size) for first, last in parts]
        self.undone: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.copy_.default and (part := self._whole(*args[:2])) is not None:
            self.note(func, args[0])
            self.undone[part] = args[1]
            return args[0]
        if self.undone and not func.is_view and self._looks(args):
            self._do()
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _looks(self, args: tuple[Any, ...]) -> bool:
        """Whether an operator has numbers of the tensor, or of what is to be copied there."""
        own = {self._storage, *(one.untyped_storage()._cdata for one in self.undone.values())}
        tensors = [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
        return any(one.numel() and one.untyped_storage()._cdata in own for one in tensors)

    def _do(self) -> None:
        for part, source in self.undone.items():
            first, last = self._places[part]
            self._tensor.flatten()[first:last].copy_(source.flatten())
        self.undone = {}

    def _whole(self, target: torch.Tensor, source: torch.Tensor) -> int | None:
        """Return the part that a copy fills with numbers that can be read where they are."""
        if (
            target.untyped_storage()._cdata != self._storage
            or not (target.is_contiguous() and source.is_contiguous())
            or (target.dtype, target.device) != (source.dtype, source.device)
            or source.is_neg()
        ):
            return None
        first = int(target.storage_offset())
        place = first, first + source.numel()
        return self._places.index(place) if place in self._places else None


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

    def remove(self, span: Span) -> None:
        """Note that places are as if nothing had been written to them."""
        left = []
        for first, last in self._spans:
            left += [(first, min(last, span[0])), (max(first, span[1]), last)]
        self._spans = [(first, last) for first, last in left if first < last]

    def has(self, span: Span) -> bool:
        """Whether all places of a span were written to."""
        return any(first <= span[0] and span[1] <= last for first, last in self._spans)


def overlap(spans: list[Span], span: Span) -> bool:
    """Whether one of some spans has a place in another."""
    return any(first < span[1] and span[0] < last for first, last in spans)
