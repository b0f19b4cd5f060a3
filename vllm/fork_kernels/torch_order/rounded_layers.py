"""What ``hf_compat`` does around products in 16 bits on CPUs, each as one operator.

PyTorch has several for each: for few tokens it takes most of a step's time to call them, and for
many each of them reads and writes all of it.
"""

import torch

from vllm.fork_kernels.operators import operator

__all__ = [
    "append_to_pages",
    "has_rounded_layers",
    "rms_norm_rounded",
    "rotate_rounded",
    "silu_and_mul_rounded",
]


@operator
def _rotate_rounded(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin: torch.Tensor,
    head_size: int,
    is_neox: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)


@operator
def _rms_norm_rounded(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(0 if residual is None else len(x), x.shape[1])


@operator
def _silu_and_mul_rounded(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


@operator
def _append_to_pages(
    pages: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    return None


def has_rounded_layers(x: torch.Tensor) -> bool:
    """Whether the operators take rows."""
    is_narrow = x.dtype in (torch.bfloat16, torch.float16)
    return x.dim() == 2 and x.device.type == "cpu" and is_narrow


def rotate_rounded(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    head_size: int,
    is_neox: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys; products, differences and sums are rounded, as PyTorch's are.

    Args:
        positions: int64 [num_tokens].
        query: bfloat16 or float16 [num_tokens, heads * head_size].
        key: likewise, of its heads.
        cos_sin: of that dtype, [positions, rotary_dim]: cosines, and behind them sines.
        head_size: of which the first ``rotary_dim`` elements are rotated.
        is_neox: the two halves of these belong together, else neighbours.

    Returns:
        both rotated, contiguous.

    Raises:
        RuntimeError: a shape, a dtype or a position is wrong.

    Source: ``apply_rotary_pos_emb`` of Transformers, vLLM's ``RotaryEmbedding.forward_native``.
    """
    return _rotate_rounded(positions, query, key, cos_sin, head_size, is_neox)


def rms_norm_rounded(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise rows, or their sums with others, in float32; round them, and scale them, which is
    rounded again.

    The mean is PyTorch's, whose order of summation is its own.

    Args:
        x: bfloat16 or float16 [n, hidden_size], contiguous.
        weight: likewise, [hidden_size].
        epsilon: is added to the mean of the squares.
        residual: as `x`; the sum is rounded before it is normalised.

    Returns:
        as `x`, and what was normalised.

    Raises:
        RuntimeError: a shape or a dtype is wrong.

    Source: ``LlamaRMSNorm.forward``, ``LlamaDecoderLayer.forward``.
    """
    normed, total = _rms_norm_rounded(x, residual, weight, epsilon)
    return normed, x if residual is None else total


def silu_and_mul_rounded(x: torch.Tensor) -> torch.Tensor:
    """Multiply the second half of each row with PyTorch's ``silu`` of the first one.

    Args:
        x: bfloat16 or float16 [n, 2 * d], contiguous.

    Returns:
        [n, d].

    Raises:
        RuntimeError: a shape or a dtype is wrong.

    Source: ``LlamaMLP.forward``.
    """
    return _silu_and_mul_rounded(x)


def append_to_pages(
    pages: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write keys and values to their places.

    Args:
        pages: [num_blocks, kv heads, block_size, key_size + value_size]: keys, values beside them.
        key: [num_tokens or more, kv heads, key_size], of the same dtype.
        value: likewise.
        slots: int64 [num_tokens]: ``block * block_size`` and the place in the block; -1 for a
            token that has no place (``PAD_SLOT_ID`` of vLLM).

    Raises:
        RuntimeError: a shape, a dtype or a slot is wrong; nothing is written then.
    """
    if pages.device.type == "cpu":
        _append_to_pages(pages, key, value, slots)
    else:
        _append_elsewhere(pages, key, value, slots)


def _append_elsewhere(
    pages: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """The same on devices for which there is no operator."""
    has_place = slots >= 0
    blocks, places = slots[has_place] // pages.shape[2], slots[has_place] % pages.shape[2]
    rows = torch.cat((key, value), dim=-1)[: len(slots)]
    pages[blocks, :, places] = rows[has_place]
