"""Rotary position embeddings with portable bits.

Specified in ``docs/numerics/operations.md``, "Rotary embedding": tables come from fixed float64
code instead of a C library's sine and cosine. Every variant (Su et al., "RoFormer", 2021, and those
that scale it) is a choice of frequencies and of a scale.
"""

import torch

from vllm.fork_kernels.operators import specified

__all__ = ["portable_rotate", "rotary_frequencies", "rotary_table"]


@specified
def _portable_rotary_frequencies(size: int, base: float) -> torch.Tensor:
    return torch.empty(size // 2)


@specified
def _portable_rotary_table(frequencies: torch.Tensor, positions: int, scale: float) -> torch.Tensor:
    return frequencies.new_empty(positions, 2 * frequencies.shape[0])


@specified
def _portable_rotate(
    x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, is_interleaved: bool
) -> None:
    return None


def rotary_frequencies(size: int, base: float = 10000.0) -> torch.Tensor:
    """Return base^(-2i / size) for i in 0..size / 2 - 1.

    Args:
        size: the elements of a head that are rotated, even.
        base: 1 to 2^60.

    Returns:
        float32 [size / 2], on CPU.

    Raises:
        RuntimeError: an argument is none of these.
    """
    return _portable_rotary_frequencies(size, base)


def rotary_table(frequencies: torch.Tensor, positions: int, scale: float = 1.0) -> torch.Tensor:
    """Return cosines and sines for positions 0..positions - 1, the layout of vLLM's cache.

    Args:
        frequencies: float32 [h], contiguous, on CPU or CUDA, not negative.
        positions: how many; the largest angle is at most 2^21.
        scale: multiplies all entries.

    Returns:
        float32 [positions, 2 * h]: the cosines, then the sines.

    Raises:
        RuntimeError: an argument is none of these. What is in a tensor on CUDA is not looked at:
            entries of a frequency out of its range are NaN.
    """
    return _portable_rotary_table(frequencies, positions, scale)


def portable_rotate(
    x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, *, is_interleaved: bool = False
) -> None:
    """Rotate the pairs of each head, in place.

    Args:
        x: float32, bfloat16 or float16 [n, heads, size], last dimension contiguous, the others at
            any distance, on CPU or CUDA.
        positions: int64 [n], contiguous.
        table: float32 [max_positions, 2 * h], contiguous, with 2 * h <= size: see `rotary_table`.
        is_interleaved: pairs are (2j, 2j + 1), as in GPT-J, and not (j, h + j), as in GPT-NeoX.

    Raises:
        RuntimeError: a dtype, shape or layout is none of these, or a position is not in the table;
            x is as it was then. On CUDA, heads at a position that is not in the table become NaN.
    """
    _portable_rotate(x, positions, table, is_interleaved)
