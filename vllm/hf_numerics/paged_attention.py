"""Attention of single tokens with the bits that each request has alone, on all threads.

PyTorch shares the heads of a request out between threads. A thread for each request is faster, but
MKL may round float32 by the alignment of memory, to which a thread's scratch adds (it does on AMD's
Zen 4), so whether the bits are the same is found out on the machine.
"""

from __future__ import annotations

import functools

import torch

from vllm.fork_ops import paged_sdpa

_BLOCK_SIZE = 16
_LENGTHS = (1, 7, 16, 33, 40, 64, 100, 130, 200, 513, 515, 600)


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
    return paged_sdpa(
        query,
        pages,
        blocks,
        starts,
        stops,
        key_size=key_size,
        scale=scale,
        enable_gqa=enable_gqa,
        thread_per_request=_may_have_a_thread_each(
            query.shape[1], pages.shape[1], key_size, pages.shape[3], query.dtype, enable_gqa
        ),
    )


@functools.cache
def _may_have_a_thread_each(
    num_heads: int,
    num_kv_heads: int,
    key_size: int,
    width: int,
    dtype: torch.dtype,
    enable_gqa: bool,
) -> bool:
    """Whether requests of one shape have the same bits on a thread each as on all threads.

    In float16 that is asked of float32: a difference between the two rarely outlives the rounding,
    once in some thousands of tokens, and is there if float32 has it.
    """
    dtype = torch.float32 if dtype == torch.float16 else dtype
    generator = torch.Generator().manual_seed(0)
    count, per_request = len(_LENGTHS), -(-max(_LENGTHS) // _BLOCK_SIZE)
    query = torch.randn(count, num_heads, 1, key_size, generator=generator)
    shape = (count * per_request, num_kv_heads, _BLOCK_SIZE, width)
    given = (
        query.to(dtype),
        torch.randn(shape, generator=generator).to(dtype),
        torch.arange(count * per_request, dtype=torch.int32).view(count, per_request),
        torch.zeros(count, dtype=torch.int64),
        torch.tensor(_LENGTHS),
    )
    ways = [
        paged_sdpa(
            *given, key_size=key_size, enable_gqa=enable_gqa, thread_per_request=thread_per_request
        )
        for thread_per_request in (False, True)
    ]
    return torch.equal(*ways)
