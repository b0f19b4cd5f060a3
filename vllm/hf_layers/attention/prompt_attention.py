"""Attention in several prompts with the bits that each has alone.

A kernel of this project adds in the order that PyTorch and MKL have on some CPUs, two to four times
as fast. Whether this is such a CPU is found out on the machine, for each length of a prompt that
occurs, by sums that cancel, of which nothing is left but what was rounded on the way. Where it is
none, PyTorch's own function is called for each prompt.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from vllm.fork_kernels import has_prompt_order, prompt_sdpa
from vllm.hf_layers.attention.paged_attention import Heads
from vllm.hf_layers.products.single_row_products import same_bits

_BLOCK_SIZE = 16
_LENGTH = 3  # the column of spans
_FIRST = 64
"""The length that is tried before all others: where the order is another one, it is for all."""


def attend_to_prompts(
    query: torch.Tensor,
    pages: torch.Tensor,
    blocks: torch.Tensor,
    spans: torch.Tensor,
    result: torch.Tensor,
    *,
    key_size: int,
    scale: float | None,
    enable_gqa: bool,
) -> None:
    """Attend from the last tokens of texts to all before them: see `prompt_sdpa`.

    Args:
        query: [num_tokens, num_heads, key_size].
        pages: [num_blocks, num_kv_heads, block_size, key_size + value_size].
        blocks: int32 [num_requests, max_blocks].
        spans: int64 [num_texts, 4].
        result: [num_tokens, num_heads, value_size], of which the rows of texts are written.
        key_size: of a head.
        scale: factor of the scores.
        enable_gqa: as of ``scaled_dot_product_attention``.
    """
    heads = Heads(query.shape[1], pages.shape[1], key_size, pages.shape[3], query.dtype, enable_gqa)
    for in_one, chosen in zip((True, False), spans_by_way(heads, spans), strict=True):
        if len(chosen):
            prompt_sdpa(
                query,
                pages,
                blocks,
                chosen,
                result,
                key_size=key_size,
                scale=scale,
                enable_gqa=enable_gqa,
                in_one=in_one,
            )


def spans_by_way(heads: Heads, spans: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the spans of texts that the project's kernel attends from, and those of the others.

    Args:
        heads: of the attention.
        spans: int64 [num_texts, 4] (`prompt_sdpa`).
    """
    tried = _fewest(heads)
    in_one = [has_the_order(tried, length) for length in spans[:, _LENGTH].tolist()]
    if len({*in_one}) > 1:
        chosen = torch.tensor(in_one)
        return spans[chosen], spans[~chosen]
    return (spans, spans[:0]) if all(in_one) else (spans[:0], spans)


def _fewest(heads: Heads) -> Heads:
    """Return as few heads as have these bits, and PyTorch's ways to share heads out to threads."""
    kept = min(heads.num_kv_heads, 2)
    return heads._replace(num_heads=heads.num_heads // heads.num_kv_heads * kept, num_kv_heads=kept)


@functools.lru_cache(maxsize=65536)
def has_the_order(heads: Heads, length: int) -> bool:
    """Whether the project's kernel has the bits of PyTorch's function for prompts of a length."""
    if heads.width != 2 * heads.key_size:
        return False
    if not has_prompt_order(length, heads.key_size, heads.dtype):
        return False
    if length != _FIRST and not has_the_order(heads, _FIRST):
        return False
    results = torch.empty(2, length, heads.num_heads, heads.key_size, dtype=heads.dtype)
    for given in _trials(heads, length):
        for in_one, result in zip((False, True), results, strict=True):
            prompt_sdpa(**given, result=result, in_one=in_one)
        if not same_bits(*results):
            return False
    return True


def _trials(heads: Heads, length: int) -> Iterator[dict[str, Any]]:
    """Yield arguments of `prompt_sdpa` for a prompt: random ones; scores, and then values, that
    cancel, of all magnitudes.
    """
    generator = torch.Generator().manual_seed(length)

    def random(*shape: int, is_wide: bool = False) -> torch.Tensor:
        x = torch.randn(shape, generator=generator)
        if is_wide:
            x = x * torch.exp2(torch.randint(-8, 9, shape, generator=generator))
        return x.to(heads.dtype)

    size, kv_heads = heads.key_size, heads.num_kv_heads
    num_blocks = -(-length // _BLOCK_SIZE)
    query = random(length, heads.num_heads, size)
    keys, values = (random(num_blocks * _BLOCK_SIZE, kv_heads, size) for _ in range(2))

    def trial(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None = None
    ) -> dict[str, Any]:
        rows = torch.cat((keys, values), dim=-1)
        return {
            "query": query,
            "pages": rows.unflatten(0, (-1, _BLOCK_SIZE)).transpose(1, 2).contiguous(),
            "blocks": torch.arange(num_blocks, dtype=torch.int32)[None],
            "spans": torch.tensor([[0, length, 0, length]]),
            "key_size": size,
            "scale": scale,
            "enable_gqa": heads.enable_gqa,
        }

    yield trial(query, keys, values)
    half = size // 2
    columns = torch.randperm(size, generator=generator)
    opposite, wide = query.clone(), random(*keys.shape, is_wide=True)
    opposite[..., columns[half : 2 * half]] = -opposite[..., columns[:half]]
    wide[..., columns[half : 2 * half]] = wide[..., columns[:half]]
    yield trial(opposite, wide, values, 2.0**14)
    order = torch.randperm(length, generator=generator)
    half = length // 2
    wide = random(*values.shape, is_wide=True)
    wide[order[half : 2 * half]] = -wide[order[:half]]
    yield trial(torch.zeros_like(query), keys, wide)
