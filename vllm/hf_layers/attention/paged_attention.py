"""Attention of single tokens with the bits that each request has alone, on all threads.

A kernel of this project reads keys and values where they are, and adds in the order that PyTorch
and MKL have on some CPUs. Whether this is such a CPU is found out on the machine, by products that
cancel, of which nothing is left but what was rounded on the way. Where it is none, PyTorch's own
function is called for each request.

PyTorch shares the heads of a request out between threads. A thread for each request is faster, but
MKL may round float32 by the alignment of memory, to which a thread's scratch adds (it does on AMD's
Zen 4), so whether the bits are the same is found out, too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from vllm.fork_kernels import has_token_attention, paged_sdpa
from vllm.hf_layers.products.probe.token_orders import token_orders

_BLOCK_SIZE = 16
_LENGTHS = (1, 2, 3, 7, 15, 16, 31, 33, 40, 64, 77, 100, 130, 200, 510, 511, 513, 515, 600, 1100)


class Heads(NamedTuple):
    """What the order of a sum may depend on, but for the number of tokens.

    Attributes:
        num_heads: of queries.
        num_kv_heads: of keys and values.
        key_size: of a head.
        width: of a head's key and value.
        dtype: of all.
        enable_gqa: as of ``scaled_dot_product_attention``.
    """

    num_heads: int
    num_kv_heads: int
    key_size: int
    width: int
    dtype: torch.dtype
    enable_gqa: bool

    @classmethod
    def of_size(cls, num_heads: int, num_kv_heads: int, size: int, dtype: torch.dtype) -> Heads:
        """Return those with values of the size of keys, as a model's layer calls attention."""
        gqa = num_heads != num_kv_heads
        return cls(num_heads, num_kv_heads, size, 2 * size, dtype, enable_gqa=gqa)


def attend_in_pages(
    query: torch.Tensor,
    pages: torch.Tensor,
    blocks: torch.Tensor,
    starts: torch.Tensor,
    stops: torch.Tensor,
    *,
    key_size: int,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """Attend to each request's own keys and values.

    Args:
        query: [num_requests, num_heads, 1, key_size].
        pages: [num_blocks, num_kv_heads, block_size, key_size + value_size].
        blocks: int32 [num_requests, max_blocks].
        starts: int64 [num_requests], the first token that is attended to.
        stops: int64 [num_requests], the token after the last one.
        key_size: of a head.
        scale: factor of the scores.
        enable_gqa: as of ``scaled_dot_product_attention``.

    Returns:
        [num_requests, 1, num_heads, value_size].
    """
    heads = Heads(query.shape[1], pages.shape[1], key_size, pages.shape[3], query.dtype, enable_gqa)
    in_one, thread_per_request, order = _way_of(heads)
    return paged_sdpa(
        query,
        pages,
        blocks,
        starts,
        stops,
        key_size=key_size,
        scale=scale,
        enable_gqa=enable_gqa,
        thread_per_request=thread_per_request,
        in_one=in_one,
        order=order,
    )


def adds_in_order(heads: Heads) -> bool:
    """Whether the project's kernel attends from single tokens with such heads."""
    return _way_of(heads)[0]


def order_in_float32(heads: Heads) -> torch.Tensor | None:
    """Return the order in which it does, as `paged_sdpa` takes it; None if it does not."""
    return _way_of(heads)[2]


@functools.cache
def _way_of(heads: Heads) -> tuple[bool, bool, torch.Tensor | None]:
    """Return whether requests are computed by the project's kernel, whether on a thread each by
    PyTorch's function, and the order of the kernel in float32.
    """
    query = torch.empty(1, heads.num_heads, 1, heads.key_size, dtype=heads.dtype)
    pages = torch.empty(1, heads.num_kv_heads, _BLOCK_SIZE, heads.width, dtype=heads.dtype)
    if has_token_attention(query, pages):
        for order in _orders(heads):
            if has_the_order(heads, order):
                return True, False, order
    return False, _may_have_a_thread_each(heads), None


def _orders(heads: Heads) -> Iterator[torch.Tensor | None]:
    """Yield those that the kernel may have."""
    if heads.dtype == torch.float32:
        yield from token_orders(heads.key_size)
    else:
        yield None


def _may_have_a_thread_each(heads: Heads) -> bool:
    """Whether requests of one shape have the same bits on a thread each as on all threads.

    In float16 that is asked of float32: a difference between the two rarely outlives the rounding,
    once in some thousands of tokens, and is there if float32 has it.
    """
    if heads.dtype == torch.float16:
        heads = heads._replace(dtype=torch.float32)
    given = _requests(heads)
    ways = [
        paged_sdpa(**given, thread_per_request=thread_per_request)
        for thread_per_request in (False, True)
    ]
    return torch.equal(*ways)


def has_the_order(heads: Heads, order: torch.Tensor | None = None) -> bool:
    """Whether the project's kernel has the bits of PyTorch's function, for all of `_trials`."""
    given = _requests(heads) | {"order": order}
    return all(
        torch.equal(*(paged_sdpa(**given | changes, in_one=in_one) for in_one in (False, True)))
        for changes in _trials(given)
    )


def _requests(heads: Heads) -> dict[str, Any]:
    """Return arguments of `paged_sdpa` for requests of `_LENGTHS`, drawn at random."""
    generator = torch.Generator().manual_seed(0)
    count, per_request = len(_LENGTHS), -(-max(_LENGTHS) // _BLOCK_SIZE)
    query = torch.randn(count, heads.num_heads, 1, heads.key_size, generator=generator)
    shape = (count * per_request, heads.num_kv_heads, _BLOCK_SIZE, heads.width)
    return {
        "query": query.to(heads.dtype),
        "pages": torch.randn(shape, generator=generator).to(heads.dtype),
        "blocks": torch.arange(count * per_request, dtype=torch.int32).view(count, per_request),
        "starts": torch.zeros(count, dtype=torch.int64),
        "stops": torch.tensor(_LENGTHS),
        "key_size": heads.key_size,
        "enable_gqa": heads.enable_gqa,
    }


def _trials(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what is changed of `_requests`: nothing; scores, and then values, that cancel.

    Terms have all magnitudes, for in float32 products of one magnitude add up without rounding.
    """
    yield {}
    generator = torch.Generator().manual_seed(1)
    query, pages, size = given["query"], given["pages"].clone(), given["key_size"]
    exponents = torch.randint(-8, 9, pages.shape, generator=generator)
    pages = (pages * torch.exp2(exponents)).to(pages.dtype)
    half = size // 2
    columns = torch.randperm(2 * half, generator=generator)
    opposite = query.clone()
    opposite[..., columns[half:]] = -opposite[..., columns[:half]]
    scores = given["pages"].clone()
    scores[..., columns[:half]] = scores[..., columns[half:]] = pages[..., columns[:half]]
    yield {"query": opposite, "pages": scores, "scale": 2.0**14}
    values = given["pages"].clone()
    tokens = values.transpose(1, 2).flatten(0, 1)  # [tokens, kv heads, width]
    later = pages.transpose(1, 2).flatten(0, 1)
    for stop, first in zip(given["stops"].tolist(), given["blocks"][:, 0].tolist(), strict=True):
        begin = first * _BLOCK_SIZE
        order = begin + torch.randperm(stop, generator=generator)
        ups, downs = order[: stop // 2], order[stop // 2 : stop // 2 * 2]
        tokens[ups, :, size:] = later[ups, :, size:]
        tokens[downs, :, size:] = -later[ups, :, size:]
    values = tokens.unflatten(0, (-1, _BLOCK_SIZE)).transpose(1, 2).contiguous()
    yield {"query": torch.zeros_like(query), "pages": values}
