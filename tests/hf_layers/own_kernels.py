"""The project's kernels of single rows in 16 bits, in whatever order this CPU's libraries add.

An engine takes these kernels where they have PyTorch's bits, which it finds out on the machine. The
operator of all layers has the bits of these kernels on any machine, and its tests take them so.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vllm.fork_kernels import row_orders
from vllm.hf_layers.attention import paged_attention
from vllm.hf_layers.attention.paged_attention import Heads
from vllm.hf_layers.products import single_row_products


@pytest.fixture
def own_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let them be taken in 16 bits; in float32 a machine still decides."""
    real_way, real_order = paged_attention._way_of, single_row_products._order

    def way(heads: Heads) -> tuple[bool, bool, torch.Tensor | None]:
        return real_way(heads) if heads.dtype == torch.float32 else (True, False, None)

    def order(probe: torch.nn.Module, *rows: torch.Tensor) -> int | None:
        found: int | None = real_order(probe, *rows)
        own = row_orders(probe.weight) if isinstance(probe, torch.nn.Linear) else ()
        return own[0] if found is None and own else found

    monkeypatch.setattr(paged_attention, "_way_of", way)
    monkeypatch.setattr(single_row_products, "_order", order)
    single_row_products._plan_of_layout.cache_clear()
    yield
    single_row_products._plan_of_layout.cache_clear()
