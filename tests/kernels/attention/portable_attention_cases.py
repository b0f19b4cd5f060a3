"""Sequences in a paged cache, and how they are run: whole, in chunks, in batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.kernels.portable_cases import integers, numbers
from vllm.fork_kernels.portable.attention import (
    attention_cache_shape,
    portable_append,
    portable_attention,
)


@dataclass
class Case:
    """A sequence's queries, keys and values, and the variant of attention."""

    query: torch.Tensor  # [tokens, heads, size]
    keys: torch.Tensor  # [tokens, kv_heads, size]
    values: torch.Tensor
    variant: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.query.shape[0]

    @property
    def scale(self) -> float:
        return float(self.query.shape[2] ** -0.5)


def make_case(
    tokens: int,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 64,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
    **variant: Any,
) -> Case:
    """Queries are large enough for some weights to be tiny."""
    return Case(
        numbers(tokens, heads, size, seed=seed, dtype=dtype, scale=16.0).to(device),
        numbers(tokens, kv_heads, size, seed=seed + 1, dtype=dtype, scale=4.0).to(device),
        numbers(tokens, kv_heads, size, seed=seed + 2, dtype=dtype).to(device),
        variant,
    )


class PagedCases:
    """Several sequences in one cache, each in blocks of its own, in no order."""

    def __init__(self, cases: Sequence[Case], block_size: int, seed: int = 0) -> None:
        self.cases = list(cases)
        self.block_size = block_size
        counts = [-(-case.tokens // block_size) for case in cases]
        num_blocks = sum(counts) + 2
        order = integers(num_blocks, seed).argsort(kind="stable")
        self.pages = torch.full((len(counts), max(counts)), -1, dtype=torch.int32)
        for i, count in enumerate(counts):
            start = sum(counts[:i])
            self.pages[i, :count] = torch.from_numpy(order[start : start + count].copy())
        kv_heads, size = cases[0].keys.shape[1:]
        shape = attention_cache_shape(num_blocks, kv_heads, size, block_size)
        self.device = cases[0].query.device
        self.pages = self.pages.to(self.device)
        # What others have left there.
        self.cache = torch.full(shape, 0xA5, dtype=torch.uint8, device=self.device)
        self.done = [0] * len(counts)

    def step(self, chunks: Sequence[int]) -> list[torch.Tensor]:
        """Append and attend to the next tokens of each sequence, some of which may have none."""
        ranges = [slice(d, d + n) for d, n in zip(self.done, chunks, strict=True)]
        for i, (case, tokens) in enumerate(zip(self.cases, ranges, strict=True)):
            positions = torch.arange(tokens.start, tokens.stop, device=self.device)
            blocks = self.pages[i].long()[positions // self.block_size]
            slots = blocks * self.block_size + positions % self.block_size
            portable_append(case.keys[tokens], case.values[tokens], self.cache, slots)
        self.done = [tokens.stop for tokens in ranges]
        query = torch.cat([c.query[t] for c, t in zip(self.cases, ranges, strict=True)])
        starts = torch.tensor([0, *chunks]).cumsum(0).to(self.device, torch.int32)
        lengths = torch.tensor(self.done, dtype=torch.int32, device=self.device)
        case = self.cases[0]
        result = portable_attention(
            *(query, self.cache, self.pages, starts, lengths),
            scale=case.scale,
            **case.variant,
        )
        return list(result.split(list(chunks)))


def attend(case: Case, chunk: int | None = None, block_size: int = 16) -> torch.Tensor:
    """The results of all tokens, computed `chunk` tokens at a time."""
    paged = PagedCases([case], block_size)
    results = []
    while paged.done[0] < case.tokens:
        left = case.tokens - paged.done[0]
        results += paged.step([min(chunk or left, left)])
    return torch.cat(results)
