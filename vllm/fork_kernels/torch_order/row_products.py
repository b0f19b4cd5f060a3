"""``torch.nn.functional.linear`` row by row, on CPU, in 16 bits.

PyTorch multiplies one row by another kernel than several rows, and adds in another order. The
compiled operator has the order of one row for any number of them, and reads the weight once. There
are two such kernels in PyTorch: its own, and oneDNN's where the CPU has instructions for bfloat16;
the operator has the order of either. Which one PyTorch takes for a shape on a CPU, the caller must
try.
"""

import torch

from vllm.fork_kernels.operators import operator

__all__ = ["ATEN", "row_orders", "row_products"]

ATEN = 0
"""The order of PyTorch's own kernel (``bf16_gemv_trans``, ``fp16_gemv_trans``)."""

_BLOCKS = (512, 1024, 256, 2048)


@operator
def _row_products(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, block: int
) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@operator
def _transposed_row_products(x: torch.Tensor, weight: torch.Tensor, block: int) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


def row_orders(weight: torch.Tensor) -> tuple[int, ...]:
    """Return the orders in which the operator can multiply on this CPU, the likelier ones first.

    Args:
        weight: [out_features, in_features], contiguous or the transpose of what is.

    Returns:
        `ATEN`, and numbers of columns that oneDNN's kernel adds up before it begins anew; none
        without AVX-512 (and AVX512_BF16 for oneDNN's), or if the weight is none for the operator.
        A transposed weight has no `ATEN`.
    """
    if weight.device.type != "cpu" or weight.dtype not in (torch.bfloat16, torch.float16):
        return ()
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        return ()
    is_paired = weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0
    has_aten = weight.is_contiguous() and torch.ops.vllm_fork.has_row_products()
    aten = (ATEN,) if has_aten else ()
    return aten + (_BLOCKS if is_paired and torch.ops.vllm_fork.has_row_chains() else ())


def row_products(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, order: int = ATEN
) -> torch.Tensor:
    """Multiply each row by itself.

    Args:
        x: bfloat16 or float16 [n, in_features].
        weight: [out_features, in_features] in that dtype; the transpose of a contiguous one, if
            there is no bias.
        bias: [out_features] likewise.
        order: one of `row_orders`.

    Returns:
        [n, out_features] in that dtype.

    Raises:
        RuntimeError: a shape or a dtype is wrong, or this CPU has no instructions for the order.
    """
    if bias is None and not weight.is_contiguous():
        return _transposed_row_products(x.contiguous(), weight.t(), order)
    return _row_products(x.contiguous(), weight, bias, order)
