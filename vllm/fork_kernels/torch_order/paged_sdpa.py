"""Attention of one new token of each of several requests to keys and values in pages, on CPU.

It is ``torch.nn.functional.scaled_dot_product_attention``, called for each request alone, so it has
that function's bits; or a kernel of this project that adds in the order of that function.
"""

import torch

from vllm.fork_kernels.operators import operator

__all__ = ["has_paged_sdpa", "has_token_attention", "paged_sdpa"]

_COLUMNS = 16


@operator
def _paged_sdpa(
    query: torch.Tensor,
    pages: torch.Tensor,
    blocks: torch.Tensor,
    starts: torch.Tensor,
    stops: torch.Tensor,
    key_size: int,
    scale: float | None,
    enable_gqa: bool,
    thread_per_request: bool,
    in_one: bool,
    order: torch.Tensor | None,
) -> torch.Tensor:
    return query.new_empty(query.shape[0], 1, query.shape[1], pages.shape[3] - key_size)


def has_paged_sdpa(device: torch.device) -> bool:
    """Whether the operator is there for tensors of a device."""
    return device.type == "cpu"


def has_token_attention(query: torch.Tensor, pages: torch.Tensor) -> bool:
    """Whether `paged_sdpa` of such tensors can be `in_one`: on a CPU with AVX-512."""
    size = query.shape[3]
    return (
        has_paged_sdpa(query.device)
        and query.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and size % _COLUMNS == 0
        and pages.shape[3] == 2 * size
        and torch.ops.vllm_fork.has_token_attention()
    )


def paged_sdpa(
    query: torch.Tensor,
    pages: torch.Tensor,
    blocks: torch.Tensor,
    starts: torch.Tensor,
    stops: torch.Tensor,
    *,
    key_size: int,
    scale: float | None = None,
    enable_gqa: bool = False,
    thread_per_request: bool = False,
    in_one: bool = False,
    order: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend to each request's own keys and values.

    Args:
        query: [num_requests, num_heads, 1, key_size].
        pages: [num_blocks, num_kv_heads, block_size, key_size + value_size] in the dtype of the
            query: keys, and values beside them.
        blocks: int32 [num_requests, max_blocks], where each request's tokens are.
        starts: int64 [num_requests], the first token that is attended to.
        stops: int64 [num_requests], the token after the last one.
        key_size: of a head.
        scale: as of PyTorch's function.
        enable_gqa: likewise.
        thread_per_request: share the requests out between threads, instead of the heads of each,
            as PyTorch does. It is faster; whether the bits are the same is up to the library of
            matrix products.
        in_one: do not call PyTorch's function, but add in the order that it has where MKL does
            not use a CPU's instructions for bfloat16 (`has_token_attention`); the caller must try
            whether this is such a CPU. It is many times as fast.
        order: int32 [n, 5], of float32 when it is `in_one`: rows of `SumOrder.tensor` for four,
            five, six and seven keys, and then a range without steps for the values, whose flags
            have 2 if their products are fused, and 4 if the first columns are added apart, as MKL
            does without AVX.

    Returns:
        [num_requests, 1, num_heads, value_size].

    Raises:
        RuntimeError: a shape, a dtype or a place is wrong; the sentence names the argument.
    """
    return _paged_sdpa(
        query.contiguous() if in_one else query,
        pages,
        blocks,
        starts,
        stops,
        key_size,
        scale,
        enable_gqa,
        thread_per_request,
        in_one,
        order,
    )
