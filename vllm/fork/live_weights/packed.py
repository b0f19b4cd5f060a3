"""What a layer's method says about weights that it has packed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol, runtime_checkable

import torch


@dataclass(frozen=True)
class PackedParameter:
    """A parameter of which a layer keeps something else.

    Attributes:
        is_read: whether the layer reads the parameter, too, so that loaders write to it.
        sizes: how many rows, in order, are packed by themselves; None for all together.
    """

    is_read: bool
    sizes: list[int] | None = None

    def parts(self, num_rows: int) -> list[tuple[int, int]]:
        """Return the rows [first, last) of each part."""
        ends = list(accumulate(self.sizes or [num_rows]))
        return list(pairwise([0, *ends]))


@runtime_checkable
class PacksWeights(Protocol):
    """The method of a layer (``quant_method``) whose packed weights can be made anew."""

    def packed_parameters(self, layer: Any) -> dict[str, PackedParameter]:
        """Return the parameters of `layer` that are packed, by name."""

    def pack_again(self, layer: Any, name: str, part: int, rows: torch.Tensor) -> None:
        """Pack one part of a parameter into the memory that has the old ones.

        Args:
            layer: the layer that this method was made for.
            name: of the parameter.
            part: its index.
            rows: the part's, with the parameter's dtype.
        """


class ReadsWeights:
    """Mixed into the method of a layer that reads its parameters in each step and packs none."""

    def packed_parameters(self, layer: Any) -> dict[str, PackedParameter]:
        """As in `PacksWeights`: none."""
        return {}

    def pack_again(self, layer: Any, name: str, part: int, rows: torch.Tensor) -> None:
        """As in `PacksWeights`."""
        raise AssertionError("nothing is packed")


class WeightsLostError(Exception):
    """Neither the old weights of a layer are there any more, nor the new ones."""


def replace_packed(old: torch.Tensor, new: torch.Tensor) -> None:
    """Write packed numbers into the memory that has the old ones: graphs keep its address.

    Raises:
        RuntimeError: they are of another shape or dtype, so that something else reads them.
    """
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        raise RuntimeError("The new weights are packed in another form than those before.")
    old.copy_(new)
