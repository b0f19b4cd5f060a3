"""Matrix products of several prompts at once, with the bits that each prompt has alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import groupby

import torch

from vllm.fork_kernels.torch_order.decoder_rows import Way
from vllm.hf_layers.products.row_counts import BY_ROW, FEW, RowCounts, sizes_together
from vllm.hf_layers.products.single_row_products import Product
from vllm.hf_layers.step_rows import Run

LONGEST = 512
"""Rows of a prompt that is put together with others; longer ones are as fast alone."""

Part = tuple[Product, int, int]
"""What multiplies rows, the first one and their end."""


class PromptsTogether:
    """Takes the rows of a step apart into what is multiplied at once.

    Args:
        by_row: multiplies rows with the bits that each has alone.
        whole: multiplies a prompt.
        counts: return, with and without a bias, what is known of the weights that `whole`
            multiplies with.
        fused: what multiplies with all of these weights at once, and what is known of that.
    """

    def __init__(
        self,
        by_row: Product,
        whole: Product,
        counts: Callable[[bool], Sequence[RowCounts]],
        fused: tuple[Product, Callable[[bool], RowCounts]] | None = None,
    ) -> None:
        self._by_row = by_row
        self._whole = whole
        self._counts = functools.cache(counts)
        self._fused = fused
        self._last: tuple[tuple[Run, ...], bool, list[Part]] | None = None

    def __call__(
        self,
        runs: tuple[Run, ...],
        rows: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the products of rows [n, in_features], [n, out_features].

        Args:
            runs: of the rows.
            rows: of a step.
            weight: is given to what multiplies.
            bias: likewise.
        """
        parts = self.parts(runs, bias is not None, rows.dtype)
        if len(parts) == 1:
            return parts[0][0](rows, weight, bias)
        return torch.cat(
            [multiply(rows[begin:end], weight, bias) for multiply, begin, end in parts]
        )

    def ways(
        self, runs: tuple[Run, ...], has_bias: bool, dtype: torch.dtype
    ) -> list[tuple[Way, int, int]]:
        """Return `parts` as `RowsAtOnce` has them; no other product must stand for `by_row`."""
        named = {self._by_row: Way.BY_ROW, self._whole: Way.BY_PARTS}
        return [
            (named.get(multiply, Way.AT_ONCE), begin, end)
            for multiply, begin, end in self.parts(runs, has_bias, dtype)
        ]

    def parts(self, runs: tuple[Run, ...], has_bias: bool, dtype: torch.dtype) -> list[Part]:
        """Return what is multiplied at once, in the order of rows.

        Args:
            runs: of a step, which keeps them for its other layers.
            has_bias: of the product.
            dtype: of the rows.
        """
        if self._last is not None and self._last[0] is runs and self._last[1] == has_bias:
            return self._last[2]
        parts: list[Part] = []
        for is_short, group in groupby(runs, lambda run: not run[0] and run[2] - run[1] <= LONGEST):
            members = list(group)
            may_be_joined = is_short and (len(members) > 1 or self._fused is not None)
            first, end = members[0][1], members[-1][2]
            are_few = dtype == BY_ROW or end - first <= FEW
            if all(run[0] or (are_few and self._is_by_row(run, has_bias)) for run in members):
                parts.append((self._by_row, first, end))
                continue
            joined = self._joined(members, has_bias) if may_be_joined else None
            parts.extend(joined or (self._alone(run, has_bias, dtype) for run in members))
        self._last = runs, has_bias, parts
        return parts

    def _alone(self, run: Run, has_bias: bool, dtype: torch.dtype) -> Part:
        is_single, begin, end = run
        are_few = dtype == BY_ROW or end - begin <= FEW
        is_by_row = is_single or (are_few and self._is_by_row(run, has_bias))
        return self._by_row if is_by_row else self._whole, begin, end

    def _is_by_row(self, prompt: Run, has_bias: bool) -> bool:
        """Whether rows of a prompt have the bits that each would have as a request's only one."""
        _, begin, end = prompt
        return all(counts.has_single_rows(end - begin) for counts in self._counts(has_bias))

    def _joined(self, prompts: list[Run], has_bias: bool) -> list[Part] | None:
        """Return how prompts that follow each other are multiplied at once; None if they cannot."""
        begin, end = prompts[0][1], prompts[-1][2]
        sizes = sizes_together(end - begin)
        lengths = {last - first for _, first, last in prompts}
        known = self._counts(has_bias)
        if not all(counts.has_the_order(n) for counts in known for n in lengths):
            return None
        multiply = self._whole
        if self._fused is not None and all(map(self._fused[1](has_bias).has_the_order, sizes)):
            multiply = self._fused[0]
        elif not all(counts.has_the_order(n) for counts in known for n in sizes):
            return None
        parts: list[Part] = []
        for size in sizes:
            parts.append((multiply, begin, begin + size))
            begin += size
        return parts
