"""Products of single float32 rows with a weight on CPU, added in an order that is given.

A library of matrix products has orders of its own, which depend on the CPU, the shape of a weight,
how many rows there are, and where the weight lies in memory. With the order of one row, the
operator has that row's bits for any number of them, and reads the weight once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from vllm.fork_kernels.operators import operator

__all__ = ["Range", "Step", "SumOrder", "has_ordered_products", "ordered_products"]

MOST_SUMS = 32
"""That a `SumOrder` may have at once."""


@operator
def _ordered_products(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, order: torch.Tensor
) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


class Step(NamedTuple):
    """One step of adding up a row's products.

    Attributes:
        sum: the number of that to which is added, below `MOST_SUMS`.
        first: the first product that is added; if there are none, the number of the sum that is
            added, and is 0 from then on.
        stride: from each product to the next.
        num_products: that are added; -1 if it is the bias that is added.
        is_fused: whether products are not rounded before they are added.
    """

    sum: int
    first: int
    stride: int
    num_products: int
    is_fused: bool = False


class Range(NamedTuple):
    """Outputs of a weight that are added in one order.

    Attributes:
        end: the output behind the last one; the first is where the range before ends.
        begins_anew: sums begin with their first product, and not with 0, to which it is added: that
            is another number where all products are -0.
        steps: there is nothing in any sum before the first; the result is sum 0.
    """

    end: int
    begins_anew: bool
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class SumOrder:
    """In which order the products of a row with each output are added.

    Attributes:
        ranges: of all outputs.
    """

    ranges: tuple[Range, ...]

    @staticmethod
    def one_behind_the_other(orders: Sequence[SumOrder]) -> SumOrder:
        """Return that of outputs that follow each other."""
        ranges: list[Range] = []
        for order in orders:
            begin = ranges[-1].end if ranges else 0
            ranges += [one._replace(end=begin + one.end) for one in order.ranges]
        return SumOrder(tuple(ranges))

    @functools.cached_property
    def tensor(self) -> torch.Tensor:
        """As the operator takes it: int32 [steps and ranges, 5]."""
        rows: list[tuple[int, ...]] = []
        for end, begins_anew, steps in self.ranges:
            rows += [(-1, end, begins_anew, len(steps), 0), *steps]
        return torch.tensor(rows, dtype=torch.int32)


def has_ordered_products(weight: torch.Tensor) -> bool:
    """Whether the operator takes a weight: float32 on a CPU with AVX-512."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.ops.vllm_fork.has_ordered_products()
    )


def ordered_products(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, order: SumOrder
) -> torch.Tensor:
    """Multiply each row by itself.

    Args:
        x: float32 [n, in_features].
        weight: float32 [out_features, in_features], of any strides.
        bias: float32 [out_features], added where the order says so.
        order: of the sums.

    Returns:
        float32 [n, out_features].

    Raises:
        RuntimeError: a shape, a dtype or the order is wrong, or this CPU has no AVX-512.
    """
    return _ordered_products(x.contiguous(), weight, bias, order.tensor)
