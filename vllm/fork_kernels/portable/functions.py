"""Elementary and activation functions with portable bits.

Specified in ``docs/numerics/operations.md``; the arithmetic is in ``csrc/portable``,
``elementary.h`` and ``activations.h``. Functions compute in float32 and round once, to the dtype of
their input.
"""

import enum

import torch

from vllm.fork_kernels.operators import specified, specified_untraced
from vllm.fork_kernels.portable import prepared_digits
from vllm.fork_kernels.portable.product import PackedWeight

__all__ = ["Function", "portable_gated", "portable_map"]


class Function(enum.StrEnum):
    """A function of one number."""

    EXP = "exp"
    EXP2 = "exp2"
    LOG = "log"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    ERF = "erf"
    RELU = "relu"
    SQUARED_RELU = "squared_relu"
    SILU = "silu"
    QUICK_GELU = "quick_gelu"
    """x * sigmoid(1.702 * x)."""
    GELU = "gelu"
    """x times the normal distribution's probability of at most x."""
    GELU_TANH = "gelu_tanh"
    """The approximation of GELU by a hyperbolic tangent."""


@specified
def _portable_map(x: torch.Tensor, function: str) -> torch.Tensor:
    return torch.empty_like(x)


@specified
def _portable_gated(x: torch.Tensor, function: str) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


_MAP = prepared_digits.Maker(
    "portable_map", _portable_map, specified_untraced("portable_map_digits")
)
_GATED = prepared_digits.Maker(
    "portable_gated", _portable_gated, specified_untraced("portable_gated_digits")
)


def portable_map(
    x: torch.Tensor, function: Function, consumer: PackedWeight | None = None
) -> torch.Tensor:
    """Apply a function to each element.

    Args:
        x: float32, bfloat16 or float16, of any shape, contiguous, on CPU or CUDA.
        function: which.
        consumer: the weight that the result will be multiplied with, see `prepared_digits`; it
            changes no bit.

    Returns:
        A new tensor like x.

    Raises:
        RuntimeError: x has another dtype or is not contiguous, or there is no such function.
    """
    return prepared_digits.call(_MAP, consumer, x, function)


def portable_gated(
    x: torch.Tensor, function: Function, consumer: PackedWeight | None = None
) -> torch.Tensor:
    """Multiply ``function(x[..., :d])`` with ``x[..., d:]``, as gated MLPs do.

    The product is rounded, the function's value before it is not.

    Args:
        x: float32, bfloat16 or float16 [..., 2 * d], contiguous, on CPU or CUDA.
        function: which.
        consumer: the weight that the result will be multiplied with, see `prepared_digits`; it
            changes no bit.

    Returns:
        [..., d] in the dtype of x.

    Raises:
        RuntimeError: x has another dtype, is not contiguous or has an odd last dimension, or there
            is no such function.
    """
    return prepared_digits.call(_GATED, consumer, x, function, parts=2)
