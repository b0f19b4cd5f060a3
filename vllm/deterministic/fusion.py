"""Finds the product that takes the results of a norm or an activation, which then make its digits.

A model's code does not say which one that is. It is seen while the model computes a few tokens,
before it answers: a result that only one weight is multiplied with first, and that nothing writes
to, is fused from then on (see `vllm.fork_ops.prepared_digits`). What is not seen is not fused.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from vllm.fork_ops.portable_product import PackedWeight
from vllm.fork_ops.prepared_digits import has_digits

__all__ = ["Source", "fused_products", "takes"]


class Source:
    """A norm or an activation of a model.

    Attributes:
        consumer: the weight of the product that takes its results; None if that is not known.
    """

    def __init__(self) -> None:
        self.consumer: PackedWeight | None = None

    def made(self, result: torch.Tensor) -> torch.Tensor:
        """Return `result`, which the source has computed."""
        if _watch is not None:
            _watch.results.append(_Result(self, result))
        return result


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


class _Result:
    """A result of a source; it is not kept from being freed."""

    def __init__(self, source: Source, tensor: torch.Tensor) -> None:
        self.source = source
        self.tensor = weakref.ref(tensor)
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.consumer: PackedWeight | None = None
        self.is_written = False


class _Watch(TorchDispatchMode):
    """Sees what becomes of results."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[_Result] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._note_written(args[i] if i < len(args) else kwargs.get(argument.name))
        return func(*args, **kwargs)

    def _note_written(self, tensor: Any) -> None:
        for written in tensor if isinstance(tensor, list | tuple) else [tensor]:
            if isinstance(written, torch.Tensor):
                storage = StorageWeakRef(written.untyped_storage())
                for result in self.results:
                    result.is_written |= result.storage.cdata == storage.cdata

    def note_taken(self, weight: PackedWeight, x: torch.Tensor) -> None:
        for result in self.results:
            if result.tensor() is x and result.consumer is None:
                result.consumer = weight

    def tell_sources(self) -> None:
        """Give each source its consumer, if all of its results have the same one."""
        for source in {id(result.source): result.source for result in self.results}.values():
            own = [result for result in self.results if result.source is source]
            is_fused = all(
                result.consumer is own[0].consumer and not result.is_written for result in own
            )
            source.consumer = own[0].consumer if is_fused else None


_watch: _Watch | None = None
