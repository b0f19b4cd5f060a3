"""Finds what takes the results of a layer, so that both can be one kernel.

A model's code does not say what that is. It is seen while the model computes a few tokens, before
it answers. A result of a norm, an activation or attention that only one weight is multiplied with
first, and that nothing writes to, is fused from then on (see
`vllm.fork_kernels.portable.prepared_digits`); so are rotations, if the next to read what they
rotate is always attention (see `vllm.deterministic.positions.postponed`). What is not seen is not
fused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vllm.fork_kernels.portable.prepared_digits import has_digits
from vllm.fork_kernels.portable.product import PackedWeight

__all__ = ["Rotator", "Source", "attends", "fused_products", "takes"]


_READS_NOTHING = ("vllm::unified_kv_cache_update", "aten::new_empty")
"""Of the first the layers' own attention does the work, which says by itself what it takes."""


class Source:
    """A norm, an activation or the attention of a layer.

    Attributes:
        consumer: the weight of the product that takes its results; None if that is not known.
    """

    def __init__(self) -> None:
        self.consumer: PackedWeight | None = None

    def made(self, result: torch.Tensor) -> torch.Tensor:
        """Return `result`, [..., columns], which the source has computed."""
        if _watch is not None:
            _watch.results.append(_Result(self, result))
        return result


class Rotator:
    """A rotary embedding, perhaps of several layers.

    Attributes:
        is_postponed: whether attention rotates what it is to rotate.
    """

    def __init__(self) -> None:
        self.is_postponed = False

    def rotated(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """Say that it has rotated queries and keys, in place."""
        if _watch is not None:
            _watch.rotations.append(_Rotated(self, (_Place(query), _Place(key))))


def attends(query: torch.Tensor, key: torch.Tensor) -> None:
    """Say that attention takes queries and keys."""
    if _watch is not None:
        _watch.note_attended(query, key)


def takes(weight: PackedWeight, x: torch.Tensor) -> None:
    """Say that `x` is multiplied with a weight."""
    if _watch is not None:
        _watch.note_taken(weight, x)


@contextmanager
def fused_products(device: torch.device) -> Iterator[None]:
    """Fuse products with what their rows come from, as seen while a model computes on a device."""
    global _watch
    if not has_digits(device):
        yield
        return
    _watch = _Watch()
    try:
        with _watch:
            yield
        _watch.tell_sources()
    finally:
        _watch = None


class _Place:
    """Which memory a tensor is; it is not kept from being freed."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.extent = (tensor.storage_offset(), tensor.numel())

    def is_of(self, tensor: torch.Tensor) -> bool:
        extent = (tensor.storage_offset(), tensor.numel())
        return self.shares_memory(tensor) and extent == self.extent

    def shares_memory(self, tensor: torch.Tensor) -> bool:
        return StorageWeakRef(tensor.untyped_storage()).cdata == self.storage.cdata


class _Result:
    """A result of a source."""

    def __init__(self, source: Source, tensor: torch.Tensor) -> None:
        self.source = source
        self.place = _Place(tensor)
        self.width = tensor.shape[-1]
        self.consumer: PackedWeight | None = None
        self.is_written = False


class _Rotated:
    """What a rotary embedding has rotated at once: queries and keys."""

    def __init__(self, rotator: Rotator, places: tuple[_Place, _Place]) -> None:
        self.rotator = rotator
        self.places = places
        self.is_read = False
        self.is_attended = False


class _Watch(TorchDispatchMode):
    """Sees what becomes of results."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[_Result] = []
        self.rotations: list[_Rotated] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._note_written(args[i] if i < len(args) else kwargs.get(argument.name))
        rotated = [one for one in self.rotations if not one.is_attended]
        result = func(*args, **kwargs)
        if not func.is_view and func._schema.name not in _READS_NOTHING:
            self._note_read(rotated, args, kwargs)
        return result

    def _note_written(self, tensor: Any) -> None:
        for written in tensor if isinstance(tensor, list | tuple) else [tensor]:
            if isinstance(written, torch.Tensor):
                for result in self.results:
                    result.is_written |= result.place.shares_memory(written)

    def _note_read(self, rotated: list[_Rotated], args: Any, kwargs: Any) -> None:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        for one in rotated:
            if not one.is_attended:  # by what was just computed
                one.is_read |= any(place.shares_memory(x) for place in one.places for x in tensors)

    def note_attended(self, query: torch.Tensor, key: torch.Tensor) -> None:
        for one in self.rotations:
            if one.places[0].is_of(query) and one.places[1].is_of(key):
                one.is_attended = True

    def note_taken(self, weight: PackedWeight, x: torch.Tensor) -> None:
        for result in self.results:
            if result.place.is_of(x) and result.width == x.shape[-1] and result.consumer is None:
                result.consumer = weight

    def tell_sources(self) -> None:
        """Give each source its consumer, if all of its results have the same one, and tell rotary
        embeddings whether attention may rotate.
        """
        for source in {id(result.source): result.source for result in self.results}.values():
            own = [result for result in self.results if result.source is source]
            is_fused = all(
                result.consumer is own[0].consumer and not result.is_written for result in own
            )
            source.consumer = own[0].consumer if is_fused else None
        for rotator in {id(one.rotator): one.rotator for one in self.rotations}.values():
            rotator.is_postponed = all(
                one.is_attended and not one.is_read
                for one in self.rotations
                if one.rotator is rotator
            )


_watch: _Watch | None = None
