"""Attention from the paged cache has the bits of Hugging Face's, one request at a time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask, sliding_window_causal_mask_function

from vllm.hf_layers.attention import attention
from vllm.hf_layers.attention.attention import HFAttentionImpl

pytestmark = pytest.mark.fast

HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 4, 2, 64, 32
NO_WINDOW = -1
Adversarial = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def make_impl(
    scale: float = 0.125, *, scales_query: bool = False, window: int = NO_WINDOW
) -> HFAttentionImpl:
    upstream: Any = SimpleNamespace(
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        scale=scale,
        sliding_window=window,
    )
    return HFAttentionImpl(upstream, scales_query)


def hugging_face(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int = NO_WINDOW,
) -> torch.Tensor:
    """Query [n, heads, size] at the end of keys and values [length, kv heads, size]."""
    module: Any = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, is_causal=True)
    mask = None
    if window > 0:
        if len(query) == 1:  # the cache of a layer with a window forgets what is before it
            key, value = key[-window:], value[-window:]
        else:
            mask = sdpa_mask(
                batch_size=1,
                q_length=len(query),
                kv_length=len(key),
                mask_function=sliding_window_causal_mask_function(window),
                local_size=window,
            )
    by_head = [x.transpose(0, 1)[None].contiguous() for x in (query, key, value)]
    return sdpa_attention_forward(module, *by_head, attention_mask=mask, scaling=scale)[0][0]


class Cache:
    """A paged cache with its blocks in disorder, and what a step says of its requests."""

    def __init__(self, lengths: list[int], dtype: torch.dtype) -> None:
        counts = [-(-length // BLOCK) for length in lengths]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)) + 1
        self.kv = torch.full((sum(counts) + 1, KV_HEADS, BLOCK, 2 * HEAD_SIZE), torch.nan)
        self.kv = self.kv.to(dtype)
        self.table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        for row, blocks in enumerate(order.split(counts)):
            self.table[row, : len(blocks)] = blocks

    def slots(self, row: int, begin: int, end: int) -> torch.Tensor:
        positions = torch.arange(begin, end)
        return self.table[row, positions // BLOCK].long() * BLOCK + positions % BLOCK


@pytest.mark.parametrize("window", [NO_WINDOW, 33, 64, 97])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("has_operator", [True, False])
def test_prompts_chunks_and_single_tokens_of_a_batch(
    adversarial: Adversarial,
    dtype: torch.dtype,
    window: int,
    has_operator: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(computed before, new): prompts, second chunks, decoding, at and across block borders."""
    steps = [
        (0, 7),
        (0, 64),
        (31, 1),
        (32, 1),
        (200, 1),
        (64, 33),
        (0, 1),
        (250, 20),
        (206, 2),
        (33, 96),
    ]
    lengths = [before + new for before, new in steps]
    monkeypatch.setattr(attention, "has_paged_sdpa", lambda _: has_operator)
    cache, impl = Cache(lengths, dtype), make_impl(window=window)
    queries, keys, values = (
        [adversarial((length, heads, HEAD_SIZE), dtype) / 8 for length in lengths]
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    layer: Any = None
    for row, (before, _) in enumerate(steps):
        slots = cache.slots(row, 0, before)
        impl.do_kv_cache_update(layer, keys[row][:before], values[row][:before], cache.kv, slots)
    new = [slice(before, None) for before, _ in steps]
    query, key, value = (
        torch.cat([x[part] for x, part in zip(tensors, new, strict=True)])
        for tensors in (queries, keys, values)
    )
    slots = torch.cat([cache.slots(row, b, b + n) for row, (b, n) in enumerate(steps)])
    impl.do_kv_cache_update(layer, key, value, cache.kv, slots)
    starts = torch.tensor([0, *[n for _, n in steps]]).cumsum(0).int()
    metadata: Any = SimpleNamespace(
        query_start_loc=starts, seq_lens=torch.tensor(lengths).int(), block_table=cache.table
    )
    output = impl.forward(layer, query, key, value, cache.kv, metadata, torch.empty_like(query))
    for row, part in enumerate(new):
        whole = queries[row] if lengths[row] > steps[row][0] + 1 else queries[row][part]
        expected = hugging_face(whole, keys[row], values[row], 0.125, window)[-steps[row][1] :]
        assert torch.equal(output[starts[row] : starts[row + 1]], expected), steps[row]


def test_scaled_query_is_rounded_before_attention(adversarial: Adversarial) -> None:
    """As OPT has it; the scale of its heads of 80 is no power of two."""
    dtype, scale = torch.bfloat16, 80**-0.5
    cache, impl = Cache([40], dtype), make_impl(scale, scales_query=True)
    query, key, value = (
        adversarial((40, heads, HEAD_SIZE), dtype) / 8 for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    layer: Any = None
    impl.do_kv_cache_update(layer, key, value, cache.kv, cache.slots(0, 0, 40))
    metadata: Any = SimpleNamespace(
        query_start_loc=torch.tensor([0, 40]), seq_lens=torch.tensor([40]), block_table=cache.table
    )
    output = impl.forward(layer, query, key, value, cache.kv, metadata, torch.empty_like(query))
    assert torch.equal(output, hugging_face(query * scale, key, value, 1.0))
    assert not torch.equal(output, hugging_face(query, key, value, scale))
