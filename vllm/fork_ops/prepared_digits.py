"""Digits of rows that are made along with the rows, on GPUs.

A norm or an activation that is told which weight its result is multiplied with, its `consumer`,
makes the digits of the result at once, and `portable_product` of that very tensor and that weight
takes them: a kernel less to launch, and the same bits. Digits of a result that was written to since
are not taken; in inference mode, where PyTorch does not count that, nothing may write to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .portable_product import PackedWeight

__all__ = ["call", "has_digits", "of"]

_MOST_ROWS = 1536
"""More are multiplied in parts: kMostRowsAtOnce of ``csrc/cuda/product/product.h``."""


def has_digits(device: torch.device) -> bool:
    """Whether norms and activations make digits on a device; else they ignore `consumer`."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device.type)
    return key is not None and torch._C._dispatch_has_kernel_for_dispatch_key(
        "vllm_fork::portable_norm_digits", key
    )


def call(
    name: str, consumer: PackedWeight | None, x: torch.Tensor, *arguments: Any, parts: int = 1
) -> torch.Tensor:
    """Call an operator of norms or activations.

    Args:
        name: of the operator; that which makes digits, too, is called `name`_digits.
        consumer: the weight that the result is multiplied with; None if that is not known.
        x: the operator's first argument.
        arguments: the others.
        parts: of the columns of `x`, one of which the result has.

    Raises:
        RuntimeError: `consumer` has another number of input channels, or see the operator.
    """
    if consumer is None or not has_digits(x.device) or not 0 < _rows_of(x) <= _MOST_ROWS:
        return getattr(torch.ops.vllm_fork, name)(x, *arguments)
    if consumer.in_features != x.shape[-1] // parts:
        raise RuntimeError(
            f"{name}: its consumer must have {x.shape[-1] // parts} input channels, as many as the "
            f"result has columns, but has {consumer.in_features}."
        )
    result, digits = getattr(torch.ops.vllm_fork, f"{name}_digits")(
        x, *arguments, consumer.exponents, consumer.out_features, consumer.segments
    )
    result._row_digits = (digits, consumer, _version_of(result))
    return result


def _rows_of(x: torch.Tensor) -> int:
    return x.numel() // max(x.shape[-1], 1)


def of(x: torch.Tensor, weight: PackedWeight) -> torch.Tensor | None:
    """Return the digits that were made of `x` for a weight; None if there are none."""
    digits, consumer, version = getattr(x, "_row_digits", (None, None, None))
    return digits if consumer is weight and version == _version_of(x) else None


def _version_of(x: torch.Tensor) -> int | None:
    """Return what grows when a tensor is written to; None in inference mode."""
    return None if x.is_inference() else x._version
