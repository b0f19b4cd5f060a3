"""Digits of rows that are made along with the rows, on GPUs.

A norm, an activation or attention that is told which weight its result is multiplied with, its
`consumer`, makes the digits of the result at once, and `portable_product` of that result, whatever
its shape, and that weight takes them: a kernel less to launch, and the same bits. Digits of a
result that was written to since are not taken; in inference mode, where PyTorch does not count
that, nothing may write to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from vllm.fork_kernels import library

if TYPE_CHECKING:
    from vllm.fork_kernels.portable.product import PackedWeight

__all__ = ["Maker", "are_made", "call", "check_width", "has_digits", "keep", "of"]

_MOST_ROWS = 1536
"""More are multiplied in parts: kMostRowsAtOnce of ``csrc/cuda/product/product.h``."""


class Maker(NamedTuple):
    """An operator of norms or activations.

    Attributes:
        name: of it.
        plain: returns the result.
        with_digits: has three more arguments of the weight, and returns digits, too.
    """

    name: str
    plain: Callable[..., torch.Tensor]
    with_digits: Callable[..., tuple[torch.Tensor, torch.Tensor]]


def has_digits(device: torch.device) -> bool:
    """Whether digits are made on a device; else `consumer` is ignored."""
    return library.has_kernel("portable_norm_digits", device)


def are_made(consumer: PackedWeight | None, rows: int, device: torch.device) -> bool:
    """Whether digits are made of so many rows, on a device, for a weight, or for none."""
    return consumer is not None and 0 < rows <= _MOST_ROWS and has_digits(device)


def check_width(name: str, consumer: PackedWeight, width: int) -> None:
    """Check that a weight takes rows of some width, which an operator makes.

    Raises:
        RuntimeError: it has another number of input channels.
    """
    if consumer.in_features != width:
        raise RuntimeError(
            f"{name}: its consumer must have {width} input channels, as many as the "
            f"result has columns, but has {consumer.in_features}."
        )


def call(
    maker: Maker, consumer: PackedWeight | None, x: torch.Tensor, *arguments: Any, parts: int = 1
) -> torch.Tensor:
    """Call an operator, and keep digits where they are made.

    Args:
        maker: the operator.
        consumer: the weight that the result is multiplied with; None if that is not known.
        x: the operator's first argument.
        arguments: the others.
        parts: of the columns of `x`, one of which the result has.

    Raises:
        RuntimeError: `consumer` has another number of input channels, or see the operator.
    """
    if consumer is None or not are_made(consumer, _rows_of(x), x.device):
        return maker.plain(x, *arguments)
    check_width(maker.name, consumer, x.shape[-1] // parts)
    result, digits = maker.with_digits(
        x, *arguments, consumer.exponents, consumer.out_features, consumer.segments
    )
    keep(result, digits, consumer)
    return result


def keep(result: torch.Tensor, digits: torch.Tensor, consumer: PackedWeight) -> None:
    """Keep with the memory of a result, contiguous, its digits for a weight."""
    storage: Any = result.untyped_storage()
    storage._row_digits = digits, consumer, _place_of(result), _version_of(result)


def of(x: torch.Tensor, weight: PackedWeight) -> torch.Tensor | None:
    """Return the digits that were made of `x` for a weight; None if there are none."""
    if torch.compiler.is_compiling() or not has_digits(x.device):
        return None
    digits, consumer, place, version = getattr(
        x.untyped_storage(), "_row_digits", (None, None, None, None)
    )
    is_same = consumer is weight and place == _place_of(x) and version == _version_of(x)
    return digits if is_same and x.is_contiguous() else None


def _rows_of(x: torch.Tensor) -> int:
    return x.numel() // max(x.shape[-1], 1)


def _place_of(x: torch.Tensor) -> tuple[Any, int]:
    """Return what tells a contiguous tensor from others in its memory, whatever its shape."""
    return x.storage_offset(), x.numel()


def _version_of(x: torch.Tensor) -> int | None:
    """Return what grows when a tensor is written to; None in inference mode."""
    return None if x.is_inference() else x._version
