"""RMSNorm and LayerNorm with portable bits.

Specified in ``docs/numerics/operations.md``, "Norms": sums have a fixed order, everything is
float32, and results are rounded once. Norms of the heads of queries and keys are the same on
reshaped rows.
"""

import torch

from vllm.fork_kernels.operators import specified, specified_untraced
from vllm.fork_kernels.portable import prepared_digits
from vllm.fork_kernels.portable.product import PackedWeight

__all__ = ["portable_layer_norm", "portable_rms_norm"]


@specified
def _portable_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    epsilon: float,
    weight_offset: float,
    is_centred: bool,
) -> torch.Tensor:
    return torch.empty_like(x)


_NORM = prepared_digits.Maker(
    "portable_norm", _portable_norm, specified_untraced("portable_norm_digits")
)


def portable_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    *,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
    consumer: PackedWeight | None = None,
) -> torch.Tensor:
    """Divide rows by the root of their mean square.

    Args:
        x: float32, bfloat16 or float16 [..., size], contiguous, on CPU or CUDA.
        weight: [size], any of these dtypes; by default ones.
        epsilon: is added to the mean square.
        residual: like x. It becomes x + residual, rounded, and that is what is normalised.
        weight_offset: is added to the weight; Gemma's checkpoints need 1.
        consumer: the weight that the result will be multiplied with, see `prepared_digits`; it
            changes no bit.

    Returns:
        A new tensor like x.

    Raises:
        RuntimeError: a dtype, shape or layout is none of these, or epsilon is negative.
    """
    arguments = (residual, weight, None, epsilon, weight_offset, False)
    return prepared_digits.call(_NORM, consumer, x, *arguments)


def portable_layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    *,
    residual: torch.Tensor | None = None,
    consumer: PackedWeight | None = None,
) -> torch.Tensor:
    """Subtract the mean of each row, and divide by its standard deviation.

    Args:
        x: float32, bfloat16 or float16 [..., size], contiguous, on CPU or CUDA.
        weight: [size], any of these dtypes; by default ones.
        bias: likewise, only with a weight; by default zeros.
        epsilon: is added to the variance.
        residual: like x. It becomes x + residual, rounded, and that is what is normalised.
        consumer: the weight that the result will be multiplied with, see `prepared_digits`; it
            changes no bit.

    Returns:
        A new tensor like x.

    Raises:
        RuntimeError: a dtype, shape or layout is none of these, or epsilon is negative.
    """
    arguments = (residual, weight, bias, epsilon, 0.0, True)
    return prepared_digits.call(_NORM, consumer, x, *arguments)
