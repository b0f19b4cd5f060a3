"""Which groups of requests have the bits of requests alone, on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from vllm.hf_exact.alone import Alone
from vllm.hf_exact.grouped_decode import GroupedDecode, PagesAreReadError
from vllm.hf_exact.kv_pages import LayerPages
from vllm.hf_numerics.single_row_products import GROUP_SIZES, same_bits

_BLOCK_SIZE = 16
_NUM_BLOCKS = 4  # of each request


@torch.inference_mode()
def equal_group_sizes(
    grouped: GroupedDecode,
    alone: Alone,
    layers: Sequence[LayerPages],
    vocab_size: int,
    device: torch.device,
) -> list[int]:
    """Return which of `GROUP_SIZES` give every request the logits, keys and values it has alone.

    Args:
        grouped: what is tried.
        alone: computes one request.
        layers: the pages of each layer, for which others stand in meanwhile.
        vocab_size: of the model.
        device: of the model.
    """
    count = GROUP_SIZES[0]
    generator = torch.Generator().manual_seed(0)
    # Texts of different lengths, the longest of which fills its blocks.
    lengths = [1 + i * (_BLOCK_SIZE * _NUM_BLOCKS - 2) // (count - 1) for i in range(count)]
    texts = [
        torch.randint(vocab_size, (1, length + 1), generator=generator).to(device)
        for length in lengths
    ]
    blocks = torch.arange(count * _NUM_BLOCKS, dtype=torch.int32, device=device)
    blocks = blocks.view(count, _NUM_BLOCKS)
    with _own_pages(layers, count * _NUM_BLOCKS, device):
        for text, length, own in zip(texts, lengths, blocks, strict=True):
            alone(text[:, :length], 0, own)
        before = [layer.kv_cache.clone() for layer in layers]
        expected = [
            alone(text, n, own)[0] for text, n, own in zip(texts, lengths, blocks, strict=True)
        ]
        after = [layer.kv_cache.clone() for layer in layers]

        def is_equal(size: int) -> bool:
            for layer, pages in zip(layers, before, strict=True):
                layer.kv_cache.copy_(pages)
            for first in range(0, count, size):
                part = slice(first, first + size)
                newest = torch.cat([text[0, -1:] for text in texts[part]])
                logits = grouped(newest, blocks[part], lengths[part])
                if not same_bits(logits, torch.cat(expected[part])):
                    return False
            return all(
                same_bits(layer.kv_cache, pages) for layer, pages in zip(layers, after, strict=True)
            )

        try:
            return [size for size in GROUP_SIZES if is_equal(size)]
        except PagesAreReadError:
            return []


@contextmanager
def _own_pages(
    layers: Sequence[LayerPages], num_blocks: int, device: torch.device
) -> Iterator[None]:
    bound = [layer.kv_cache for layer in layers]
    for layer in layers:
        width = layer.key_size + layer.value_size
        shape = (num_blocks, layer.num_heads, _BLOCK_SIZE, width)
        layer.kv_cache = torch.zeros(shape, dtype=layer.dtype, device=device)
    try:
        yield
    finally:
        for layer, pages in zip(layers, bound, strict=True):
            layer.kv_cache = pages
