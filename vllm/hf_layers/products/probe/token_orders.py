"""The orders in which PyTorch's attention may add in float32, from a single token: MKL's.

Scores are products of MKL with a few outputs, whose orders are asked for (`row_order`). Values are
added one after the other, with or without rounding between; some columns in an order of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from vllm.fork_kernels.torch_order.ordered_products import SumOrder
from vllm.hf_layers.products.single_row_products import RowPlan

_IS_FUSED, _HAS_COLUMNS_APART = 2, 4
_VALUES = (
    _HAS_COLUMNS_APART,  # without AVX, as on other makers' CPUs than Intel's
    _IS_FUSED,  # with AVX2
)


def token_orders(head_size: int) -> Iterator[torch.Tensor]:
    """Yield orders for `paged_sdpa`, the likelier ones first; none if scores have none.

    Args:
        head_size: of keys and values.
    """
    scores = [_order_of_keys(count, head_size) for count in (4, 5, 6, 7)]
    if None in scores:
        return
    rows = [order.tensor for order in scores if order is not None]
    for flags in _VALUES:
        values = torch.tensor([(-1, 1, flags, 0, 0)], dtype=torch.int32)
        yield torch.cat([*rows, values])


def _order_of_keys(count: int, head_size: int) -> SumOrder | None:
    """Return that of the scores of so many keys, which PyTorch computes on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        order = RowPlan(nn.Linear(head_size, count, bias=False, dtype=torch.float32)).order
    finally:
        torch.set_num_threads(threads)
    return order if isinstance(order, SumOrder) else None
