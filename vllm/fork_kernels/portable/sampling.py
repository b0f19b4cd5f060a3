"""Sampling with portable bits.

Specified in ``docs/numerics/operations.md``, "Sampling": a token is drawn by adding noise to the
logits and taking the largest. The noise of a token depends on the seed, the position and the token
alone, so a request draws the same tokens in any batch.
"""

import torch

from vllm.fork_kernels.operators import specified

__all__ = ["portable_draw", "portable_filter"]


@specified
def _portable_filter(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    return logits.new_empty(logits.shape, dtype=torch.float32)


@specified
def _portable_draw(
    logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.int64)


def portable_filter(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Divide logits by the temperature, then remove what min_p, top_k and top_p remove.

    Args:
        logits: float32, bfloat16 or float16 [n, vocab_size], last dimension contiguous, on CPU or
            CUDA, with fewer than 2^19 columns.
        temperatures: float32 [n], contiguous, not negative. Zero leaves the largest logit alone.
        top_k: int32 [n], contiguous: how many tokens stay; all if it is below 1.
        top_p: float32 [n], contiguous, 0 to 1: the share of the probability that stays.
        min_p: float32 [n], contiguous, 0 to 1: the smallest probability that stays, the largest
            being 1.

    Returns:
        float32 [n, vocab_size], -infinity where a token is removed.

    Raises:
        RuntimeError: an argument is none of these. What is in a tensor on CUDA is not looked at:
            a row with a number out of its range becomes NaN, of which no token is drawn.
    """
    return _portable_filter(logits, temperatures, top_k, top_p, min_p)


def portable_draw(
    logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Draw a token of each row with the probabilities that the softmax of the row gives.

    Args:
        logits: as of `portable_filter`.
        seeds: int64 [n], contiguous: of each request.
        positions: int64 [n], contiguous: of the token that is drawn. The same seed and position
            draw with the same noise.

    Returns:
        int64 [n]; -1 where the largest logit is not finite.

    Raises:
        RuntimeError: an argument is none of these.
    """
    return _portable_draw(logits, seeds, positions)
