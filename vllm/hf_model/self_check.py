"""Which groups of requests have the bits of requests alone, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vllm.hf_layers.products.single_row_products import GROUP_SIZES as SEVERAL
from vllm.hf_layers.products.single_row_products import same_bits
from vllm.hf_model.alone import Alone
from vllm.hf_model.group_cache import PagesAreReadError
from vllm.hf_model.grouped_decode import GroupedDecode
from vllm.hf_model.grouped_prompts import GroupedPrompts
from vllm.hf_model.model_cache import Blocks, ModelCache
from vllm.hf_model.operations import Operations

GROUP_SIZES = (2 * SEVERAL[0], *SEVERAL, 1)
"""How many requests are computed as a group; a single one, too."""

_BLOCK_SIZE = 16
_NUM_BLOCKS = 4  # of each request
_PROMPTS = (2, 33, 64, 17, 100, 5, 48)  # tokens of each; more than FEW are multiplied otherwise
_PROMPT_BLOCKS = 7  # of each


@torch.inference_mode()
def equal_group_sizes(
    grouped: GroupedDecode,
    alone: Alone,
    cache: ModelCache,
    vocab_size: int,
    device: torch.device,
) -> tuple[list[int], str]:
    """Return which of `GROUP_SIZES` give every request the logits that it has alone, and leave all
    that is cached of it with the same bits; and why none does, if none does.

    Args:
        grouped: what is tried.
        alone: computes one request.
        cache: of the model, for whose memory other memory stands in meanwhile.
        vocab_size: of the model.
        device: of the model.
    """
    count = SEVERAL[0]
    # Texts of different lengths, the longest of which fills its blocks.
    lengths = [1 + i * (_BLOCK_SIZE * _NUM_BLOCKS - 2) // (count - 1) for i in range(count)]
    texts = [text.to(device) for text in _texts([length + 1 for length in lengths], vocab_size)]
    blocks = torch.arange(GROUP_SIZES[0] * _NUM_BLOCKS, dtype=torch.int32, device=device)
    blocks = blocks.view(-1, _NUM_BLOCKS)
    states = [(i,) * len(cache.states) for i in range(len(blocks))]
    with _own_pages(cache, count, _NUM_BLOCKS, device):
        places = [Blocks(*own) for own in zip(blocks, states, strict=True)]
        for text, length, own in zip(texts, lengths, places, strict=False):
            alone(text[:, :length], 0, own)
        before = [one.kv_cache.clone() for one in cache.parts]
        expected = [
            alone(text, n, own)[0] for text, n, own in zip(texts, lengths, places, strict=False)
        ]
        after = [one.kv_cache.clone() for one in cache.parts]

        def is_equal(size: int) -> bool:
            """Whether groups of a size are; all texts come as often as they fill one."""
            times = -(-size // count)
            for one, memory in zip(cache.parts, before, strict=True):
                one.kv_cache = torch.cat([memory] * times)
            for first in range(0, times * count, size):
                part = slice(first, first + size)
                own = (texts * times)[part]
                logits = _next_logits(grouped, own, blocks[part], states[part], cache)
                if not same_bits(logits, torch.cat((expected * times)[part])):
                    return False
            return all(
                same_bits(one.kv_cache, torch.cat([memory] * times))
                for one, memory in zip(cache.parts, after, strict=True)
            )

        try:
            sizes = [size for size in GROUP_SIZES if is_equal(size)]
        except PagesAreReadError:
            return [], "it computes with keys and values before it attends to them"
        except Exception as error:  # a model's own code may not take what it is given
            return [], f"it cannot be called for several ({type(error).__name__}: {error})"
    return sizes, "" if sizes else "others would change its bits"


def _next_logits(
    grouped: GroupedDecode,
    texts: list[torch.Tensor],
    blocks: torch.Tensor,
    states: list[tuple[int, ...]],
    cache: ModelCache,
) -> torch.Tensor:
    """Return what comes behind texts, of which all but the last tokens have been computed."""
    positions = [text.shape[1] - 1 for text in texts]
    slots = cache.slots_of(blocks, [(one, one + 1) for one in positions])
    token_ids = torch.cat([text[0, -1:] for text in texts])
    return grouped(token_ids, blocks, positions, slots, states if cache.states else ())


def _texts(lengths: list[int], vocab_size: int) -> list[torch.Tensor]:
    """Return random tokens, int64 [1, length] each."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocab_size, (1, length), generator=generator) for length in lengths]


@torch.inference_mode()
def why_no_prompts(
    model: nn.Module,
    grouped: GroupedPrompts,
    alone: Alone,
    cache: ModelCache,
    vocab_size: int,
) -> str | None:
    """Return why prompts are not computed together; None if each has the logits, keys and values
    that it has alone.

    Lengths that are not tried are equal, too, if nothing but the layers with stand-ins depends on
    them, which is looked at.

    Args:
        model: of `grouped`, with its stand-ins.
        grouped: what is tried.
        alone: computes one request.
        cache: of the model, for whose memory other memory stands in meanwhile.
        vocab_size: of the model.
    """
    layers = cache.pages
    prompts = [text[0] for text in _texts([*_PROMPTS], vocab_size)]
    groups = grouped.split(dict(enumerate(map(len, prompts))))
    if not groups:
        return "its windows are too narrow"
    prompts = [prompts[i] for i in groups[0]]
    spans = [(0, len(prompt)) for prompt in prompts]
    num_blocks = len(prompts) * _PROMPT_BLOCKS
    blocks = torch.arange(num_blocks, dtype=torch.int32).view(-1, _PROMPT_BLOCKS)
    with _own_pages(cache, len(prompts), _PROMPT_BLOCKS, blocks.device):
        expected = [
            alone(prompt[None], 0, Blocks(own))[0]
            for prompt, own in zip(prompts, blocks, strict=True)
        ]
        after = [layer.kv_cache.clone() for layer in layers]

        def are_equal(groups: list[slice]) -> bool:
            for layer in layers:
                layer.kv_cache.zero_()
            logits = [
                grouped(prompts[one], blocks[one], layers[0].slots_of(blocks[one], spans[one]))
                for one in groups
            ]
            return same_bits(torch.cat(logits), torch.cat(expected)) and all(
                same_bits(layer.kv_cache, pages) for layer, pages in zip(layers, after, strict=True)
            )

        try:
            with Operations(model) as operations:  # hooks modules, which are called then
                is_equal = are_equal([slice(None)])
            is_equal = is_equal and are_equal([slice(None)])
        except Exception as error:  # a model's own code may not take what it is given
            return f"it cannot be called for several ({type(error).__name__}: {error})"
        if operations.others:
            return f"what it does might depend on others ({', '.join(sorted(operations.others))})"
        if not is_equal:
            return "others would change their bits"
        if grouped.is_one_operator:
            grouped.takes_one = are_equal([slice(i, i + 1) for i in range(len(prompts))])
    return None


@contextmanager
def _own_pages(
    cache: ModelCache, num_requests: int, num_blocks: int, device: torch.device
) -> Iterator[None]:
    """Give a cache memory for some requests, each with some blocks of tokens."""
    bound = [one.kv_cache for one in cache.parts]
    for one in cache.parts:
        one.kv_cache = one.new_memory(num_requests, num_blocks, _BLOCK_SIZE, device)
    try:
        yield
    finally:
        for one, memory in zip(cache.parts, bound, strict=True):
            one.kv_cache = memory
