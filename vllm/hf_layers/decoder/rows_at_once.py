"""Which rows of a step the operator of all layers computes at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from vllm.fork_kernels.torch_order.decoder_rows import RowsAtOnce
from vllm.hf_layers.layers.activations import rows_activated
from vllm.hf_layers.products.prompts_together import PromptsTogether
from vllm.hf_layers.step_rows import Run

_STEPS_KEPT = 256
"""Of so many kinds of steps it is kept how their rows are computed."""

Product = tuple[PromptsTogether, bool]
"""How a product multiplies prompts, and whether it has a bias."""


class StepsRowsAtOnce:
    """Says it of steps, and keeps what it has said.

    Args:
        products: returns those of a layer: qkv, output, gate_up and down.
        width: columns of the gate.
        dtype: of the rows.
    """

    def __init__(
        self, products: Callable[[], Sequence[Product]], width: int, dtype: torch.dtype
    ) -> None:
        self._products = products
        self._width = width
        self._dtype = dtype
        self._found = functools.lru_cache(_STEPS_KEPT)(self._find)

    def __call__(self, runs: tuple[Run, ...]) -> RowsAtOnce:
        """Return which rows of a step of these runs are computed at once."""
        return self._found(runs, torch.get_num_threads())

    def _find(self, runs: tuple[Run, ...], num_threads: int) -> RowsAtOnce:
        """`num_threads` is a key: products depend on it."""
        activated = rows_activated(runs, self._width)
        if all(is_single for is_single, _, _ in runs):
            return RowsAtOnce(activated=activated)
        parts = [ways.ways(runs, has_bias, self._dtype) for ways, has_bias in self._products()]
        return RowsAtOnce.of(parts, activated)
