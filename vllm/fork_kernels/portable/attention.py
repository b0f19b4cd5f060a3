"""Paged attention with portable bits: prefill and decode in one operator.

Specified in ``docs/numerics/attention.md``: keys and values are kept as integers of 16 bits with a
power of two for each token and head, sums of products are exact, and what is not exact has an order
that absolute positions fix. So results do not depend on the batch, the chunks of a prompt, the size
of blocks or the place of tokens.
"""

import torch

from vllm.fork_kernels import library
from vllm.fork_kernels.operators import specified, specified_untraced
from vllm.fork_kernels.portable import prepared_digits
from vllm.fork_kernels.portable.product import PackedWeight
from vllm.fork_kernels.portable.rotary import portable_rotate

__all__ = [
    "HEAD_SIZES",
    "attention_cache_shape",
    "portable_append",
    "portable_attention",
    "portable_rotate_append",
]

HEAD_SIZES = range(16, 257, 16)
"""That the kernels take."""

TILE_TOKENS = 16
"""Cache blocks hold a multiple of this many tokens."""


@specified
def _portable_append(
    keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
) -> None:
    return None


@specified
def _portable_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    pages: torch.Tensor,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    result: torch.Tensor,
) -> None:
    return None


_portable_rotate_append = specified_untraced("portable_rotate_append")
_portable_attention_digits = specified_untraced("portable_attention_digits")


def attention_cache_shape(
    num_blocks: int, num_kv_heads: int, head_size: int, block_size: int
) -> tuple[int, int, int]:
    """Return the shape of a cache of uint8: 4 * head_size + 2 bytes for each token and head.

    Raises:
        ValueError: the block size is no multiple of 16.
    """
    if block_size <= 0 or block_size % TILE_TOKENS:
        raise ValueError(f"block_size must be a multiple of {TILE_TOKENS}, but is {block_size}")
    return num_blocks, num_kv_heads, block_size * (4 * head_size + 2)


def portable_append(
    keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write keys and values of new tokens to the cache.

    Args:
        keys: float32, bfloat16 or float16 [n, num_kv_heads, head_size], last dimension contiguous,
            on CPU or CUDA. head_size is a multiple of 16 up to 256.
        values: likewise; the dtypes may differ.
        cache: uint8, see `attention_cache_shape`, last dimension contiguous; changed in place.
        slots: int64 [n], contiguous: block * block_size + place in it. Below 0 nothing is written.
            No two are equal.

    Raises:
        RuntimeError: a dtype, shape or layout is none of these, or a slot is outside of the cache;
            nothing is written then. On CUDA, nothing is written for a slot outside of the cache.
    """
    _portable_append(keys, values, cache, slots)


def portable_rotate_append(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    is_interleaved: bool = False,
) -> None:
    """Rotate queries and keys in place, and append the keys and values of the first tokens.

    `portable_rotate` of both and `portable_append`: on CUDA in one kernel.

    Args:
        query: float32, bfloat16 or float16 [n, num_heads, head_size], last dimension contiguous, on
            CPU or CUDA.
        keys: the same dtype, [n, num_kv_heads, head_size], likewise.
        values: [n, num_kv_heads, head_size], any of these dtypes, likewise.
        positions: int64 [n], contiguous.
        table: see `portable_rotate`.
        cache: see `portable_append`.
        slots: int64 [m], contiguous, m <= n: as `portable_append` takes them, of the first tokens.
        is_interleaved: see `portable_rotate`.

    Raises:
        RuntimeError: a dtype, shape or layout is none of these, or on CPU as those of the two. On
            CUDA, heads at a position that is not in the table become NaN, and nothing is written
            for a slot outside of the cache.
    """
    if library.has_kernel("portable_rotate_append", query.device):
        _portable_rotate_append(query, keys, values, positions, table, is_interleaved, cache, slots)
        return
    for x in (query, keys):
        portable_rotate(x, positions, table, is_interleaved=is_interleaved)
    portable_append(keys[: len(slots)], values[: len(slots)], cache, slots)


def portable_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    pages: torch.Tensor,
    query_starts: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    consumer: PackedWeight | None = None,
) -> torch.Tensor:
    """Attend, causally, to the keys and values of each sequence.

    The last tokens of a sequence are its queries; their own keys and values are in the cache.

    Args:
        query: float32, bfloat16 or float16 [n, num_heads, head_size], last dimension contiguous, on
            CPU or CUDA: the queries of all sequences, one after the other.
        cache: uint8, see `attention_cache_shape`; num_heads is a multiple of its heads.
        pages: int32 [num_sequences, max_blocks], contiguous: the blocks of each sequence.
        query_starts: int32 [num_sequences + 1], contiguous: where each sequence's queries begin,
            and n.
        lengths: int32 [num_sequences], contiguous: the tokens of each sequence, queries included.
        scale: of the scores, 2^-20 to 2^20.
        window: how many tokens a query sees, itself included; 0 for all before it.
        soft_cap: c of c * tanh(score / c), 2^-10 to 2^17; 0 for none.
        slopes: float32 [num_heads], contiguous: of ALiBi (Press et al., 2021).
        sinks: float32 [num_heads], contiguous: the scores of tokens without values (Xiao et al.,
            2023), one a head.
        out: like query, contiguous: for the result; by default a new tensor.
        consumer: the weight that the result, as rows [n, num_heads * head_size], will be multiplied
            with, see `prepared_digits`; it changes no bit.

    Returns:
        `out`. It is NaN for a query and head if a number that it depends on is
        not finite.

    Raises:
        RuntimeError: a dtype, shape, layout, length or page is none of these. What is in a tensor
            on CUDA is not looked at: a query whose sequence has a wrong length, or that sees a
            token in a page that there is not, has a result of NaN. Rows of query behind the last
            sequence are allowed there, for captured graphs, and their results mean nothing.
    """
    result = query.new_empty(query.shape) if out is None else out
    given = (query, cache, pages, query_starts, lengths, scale, window, soft_cap, slopes, sinks)
    if consumer is None or not prepared_digits.are_made(consumer, len(query), query.device):
        _portable_attention(*given, result)
        return result
    prepared_digits.check_width("portable_attention", consumer, result[0].numel())
    weight = (consumer.exponents, consumer.out_features, consumer.segments)
    digits = _portable_attention_digits(*given, result, *weight)
    prepared_digits.keep(result, digits, consumer)
    return result
