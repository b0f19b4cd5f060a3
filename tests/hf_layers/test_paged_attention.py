"""Attention of single tokens of many requests has the bits that each request has alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from vllm.fork_kernels import paged_sdpa
from vllm.hf_layers.attention import paged_attention
from vllm.hf_layers.attention.paged_attention import Heads, attend_in_pages

NUM_REQUESTS, BLOCKS, BLOCK_SIZE = 64, 13, 16


def cancelling(shape: tuple[int, ...], dim: int, generator: torch.Generator) -> torch.Tensor:
    """Numbers of many sizes, with their opposites: sums of them are what was rounded on the way."""
    numbers = torch.randn(shape, generator=generator)
    numbers *= torch.exp2(torch.randint(-6, 6, shape, generator=generator).float())
    half, _ = numbers.chunk(2, dim)
    return torch.cat((half, -half), dim)


@pytest.mark.some(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 64), (12, 12, 64)])
def test_many_requests(dtype: torch.dtype, heads: int, kv_heads: int, size: int) -> None:
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, BLOCKS * BLOCK_SIZE, (NUM_REQUESTS,), generator=generator)
        shape = (NUM_REQUESTS * BLOCKS, kv_heads, BLOCK_SIZE, size)
        keys, values = cancelling(shape, -1, generator), cancelling(shape, 2, generator)
        pages = torch.cat((keys, values), -1).to(dtype)
        half = torch.randn(NUM_REQUESTS, heads, 1, size // 2, generator=generator)
        query = half.repeat(1, 1, 1, 2).to(dtype)
        blocks = torch.arange(NUM_REQUESTS * BLOCKS, dtype=torch.int32).view(NUM_REQUESTS, BLOCKS)
        found = attend_in_pages(
            query, pages, blocks, torch.zeros(NUM_REQUESTS, dtype=torch.int64), lengths,
            key_size=size, scale=None, enable_gqa=heads != kv_heads,
        )  # fmt: skip
        for i, length in enumerate(lengths.tolist()):
            rows = pages[blocks[i].long()].transpose(0, 1).flatten(1, 2)[None, :, :length]
            key, value = (x.contiguous() for x in rows.chunk(2, dim=-1))
            expected = scaled_dot_product_attention(
                query[i : i + 1], key, value, enable_gqa=heads != kv_heads
            )
            assert torch.equal(found[i, 0], expected[0, :, 0]), (seed, i, length)


@pytest.mark.parametrize("what", ["scores", "weights", "values"])
def test_another_order_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that rounds elsewhere, on a CPU of any kind, is not taken for PyTorch's."""
    stock = paged_sdpa

    def other(query: torch.Tensor, pages: torch.Tensor, **given: Any) -> torch.Tensor:
        if not given.pop("in_one", False):
            return stock(query, pages, **given)
        found = []
        for i, (start, stop) in enumerate(zip(given["starts"], given["stops"], strict=True)):
            own = pages[given["blocks"][i].long()].transpose(0, 1).flatten(1, 2)
            key, value = own[:, start:stop].double().chunk(2, -1)
            scores = query[i].double() @ key.mT
            scores = scores * given.get("scale", given["key_size"] ** -0.5)
            scores = scores if what == "scores" else scores.float().double()
            weights = scores.softmax(-1)
            weights = weights if what == "weights" else weights.bfloat16().double()
            found.append((weights @ value).transpose(0, 1))
        return torch.stack(found).to(query.dtype)

    monkeypatch.setattr(paged_attention, "paged_sdpa", other)
    assert not paged_attention.has_the_order(Heads(4, 4, 64, 128, torch.bfloat16, enable_gqa=False))
