"""Products of single bfloat16 rows with a weight on CPU: ``torch.nn.functional.linear`` row by row.

PyTorch multiplies one row by another kernel than several rows, and adds in another order. The
compiled operator has the order of one row for any number of them, and reads the weight once. It is
there on CPUs with AVX-512; whether PyTorch takes that kernel for a shape on a CPU, the caller must
try.
"""

import torch

from . import library

__all__ = ["has_row_products", "row_products"]

COLUMNS = 64
"""The operator takes multiples of this many columns."""

_is_there = library.load() and torch.ops.vllm_fork.has_row_products()

if _is_there:

    @torch.library.register_fake("vllm_fork::row_products")
    def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x.new_empty(x.shape[0], weight.shape[0])


def has_row_products(weight: torch.Tensor) -> bool:
    """Whether the operator can multiply with a weight [out_features, in_features] on this CPU."""
    return (
        _is_there
        and weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and weight.shape[1] % COLUMNS == 0
    )


def row_products(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply each row by itself.

    Args:
        x: bfloat16 [n, in_features].
        weight: bfloat16 [out_features, in_features], for which `has_row_products` holds.
        bias: bfloat16 [out_features].

    Returns:
        bfloat16 [n, out_features].

    Raises:
        RuntimeError: a shape or a dtype is wrong, or this CPU has no AVX-512.
    """
    return torch.ops.vllm_fork.row_products(x.contiguous(), weight, bias)
