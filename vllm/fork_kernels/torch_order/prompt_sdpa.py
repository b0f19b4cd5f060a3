"""Attention in prompts whose keys and values are in pages, on CPU.

It is ``torch.nn.functional.scaled_dot_product_attention``, called for each prompt alone, so it has
that function's bits; as one operator, because calling its parts takes longer than short prompts do.
A kernel of this project adds in that function's order on some CPUs.
"""

import torch

from vllm.fork_kernels.operators import operator

__all__ = ["has_prompt_order", "prompt_sdpa"]


@operator
def _prompt_sdpa(
    query: torch.Tensor,
    pages: torch.Tensor,
    blocks: torch.Tensor,
    spans: torch.Tensor,
    key_size: int,
    scale: float | None,
    enable_gqa: bool,
    in_one: bool,
    result: torch.Tensor,
) -> None:
    return None


def has_prompt_order(length: int, head_size: int, dtype: torch.dtype) -> bool:
    """Whether `prompt_sdpa` has a kernel of its own (``in_one``) for prompts.

    Args:
        length: of a prompt.
        head_size: of keys and of values.
        dtype: of all.
    """
    return (
        dtype in (torch.bfloat16, torch.float16)
        and head_size % 16 == 0
        and head_size <= 192
        and torch.ops.vllm_fork.has_prompt_order(length)
    )


def prompt_sdpa(
    query: torch.Tensor,
    pages: torch.Tensor,
    blocks: torch.Tensor,
    spans: torch.Tensor,
    result: torch.Tensor,
    *,
    key_size: int,
    scale: float | None = None,
    enable_gqa: bool = False,
    in_one: bool = False,
) -> None:
    """Attend from the last tokens of texts to all before them.

    Args:
        query: [num_tokens, num_heads, key_size]; heads must be contiguous.
        pages: [num_blocks, num_kv_heads, block_size, key_size + value_size] in the dtype of the
            query: keys, and values beside them.
        blocks: int32 [num_requests, max_blocks], where each request's tokens are.
        spans: int64 [num_texts, 4]: of each the first row of its queries, their end, its row of
            `blocks`, and the number of tokens up to its last query.
        result: [num_tokens, num_heads, value_size], of which the rows of texts are written.
        key_size: of a head.
        scale: as of PyTorch's function.
        enable_gqa: likewise.
        in_one: do not call PyTorch's function, but add in the order that it has where MKL does
            not use a CPU's instructions for the dtype (`has_prompt_order`); the caller must try
            whether this is such a CPU.

    Raises:
        RuntimeError: a shape, a dtype or a place is wrong, and nothing is written.

    Source: ``sdpa_attention_forward`` of Transformers.
    """
    _prompt_sdpa(query, pages, blocks, spans, key_size, scale, enable_gqa, in_one, result)
