"""Log-softmax, argmax and top-k with portable bits.

Specified in ``docs/numerics/operations.md``: probabilities are added as integers, and logits have
one order, by value and then by index.
"""

import torch

from vllm.fork_kernels.operators import specified

__all__ = ["portable_argmax", "portable_log_softmax", "portable_top_k"]


@specified
def _portable_log_softmax(logits: torch.Tensor) -> torch.Tensor:
    return logits.new_empty(logits.shape, dtype=torch.float32)


@specified
def _portable_argmax(logits: torch.Tensor) -> torch.Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.int64)


@specified
def _portable_top_k(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (logits.shape[0], k)
    return (
        logits.new_empty(shape, dtype=torch.float32),
        logits.new_empty(shape, dtype=torch.int64),
    )


def portable_log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of the probabilities of all tokens.

    Args:
        logits: float32, bfloat16 or float16 [n, vocab_size], last dimension contiguous, on CPU or
            CUDA, with fewer than 2^19 columns.

    Returns:
        float32 [n, vocab_size]; a row is NaN if its largest logit is not finite.

    Raises:
        RuntimeError: logits are none of these.
    """
    return _portable_log_softmax(logits)


def portable_argmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the index of the largest logit of each row, of equal ones the lowest.

    NaN is above everything, as for ``torch.argmax``.

    Args:
        logits: as of `portable_log_softmax`.

    Returns:
        int64 [n].

    Raises:
        RuntimeError: logits are none of these.
    """
    return _portable_argmax(logits)


def portable_top_k(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first k tokens of each row: larger logits first, of equal ones the lower index.

    Args:
        logits: as of `portable_log_softmax`.
        k: 1 to vocab_size.

    Returns:
        Their logits, float32 [n, k], and their indices, int64 [n, k].

    Raises:
        RuntimeError: an argument is none of these.
    """
    return _portable_top_k(logits, k)
