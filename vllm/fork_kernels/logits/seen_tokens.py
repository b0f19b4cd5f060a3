"""The tokens that each request has seen, and Hugging Face's repetition penalty on them.

``RepetitionPenaltyLogitsProcessor`` (transformers, ``generation/logits_process.py``) gathers, at
every step, the scores of all tokens of prompt and output, changes each once, and scatters them
back. Here each request keeps one bit a token, so that a step sets one bit and changes the logits
whose bit is set: nothing grows with the length of the text.

A batch keeps its masks in one tensor ``seen``, int32 [num_slots, num_mask_words(vocab_size)], zero
at first; a request owns a row, its slot, for as long as it runs.
"""

import enum

import torch

from vllm.fork_kernels.logits import checks
from vllm.fork_kernels.logits.mask import num_mask_words
from vllm.fork_kernels.operators import operator

__all__ = [
    "DivisionRule",
    "apply_repetition_penalty",
    "hf_division_rule",
    "mark_seen_tokens",
    "num_mask_words",
]


class DivisionRule(enum.Enum):
    """How a logit that is not negative is divided by the penalty, in float32.

    Both are available on every device; which one Hugging Face's bits need depends on the device,
    see :func:`hf_division_rule`. The arithmetic is in ``csrc/portable/repetition_penalty.h``.
    """

    DIVIDE = "divide"
    """One correctly rounded division."""

    RECIPROCAL = "reciprocal"
    """A multiplication by the penalty's reciprocal, taken in float64 and rounded to float32."""


def hf_division_rule(device: torch.device) -> DivisionRule:
    """The rule that Hugging Face follows on ``device``, there dividing by a Python float.

    On CUDA, torch multiplies by the reciprocal of a divisor that is a number, which it takes in
    float64 (ATen, ``native/cuda/BinaryDivTrueKernel.cu``; measured with torch 2.11); on CPU it
    divides.
    """
    return DivisionRule.RECIPROCAL if device.type == "cuda" else DivisionRule.DIVIDE


# Both change an argument and return nothing, so all that tracing needs of them is the checks.
_mark_seen_tokens = operator(checks.mark_seen_tokens)
_apply_repetition_penalty = operator(checks.apply_repetition_penalty)


def mark_seen_tokens(seen: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
    """Set bit ``token_ids[i]`` of row ``slots[i]`` of ``seen``, for every i, in place.

    Entries may repeat, and may share a row: a whole prompt is marked by one call.

    Args:
        seen: int32 [num_slots, num_words], contiguous.
        slots: int32 [n], contiguous. An entry below 0 is a placeholder, and skipped.
        token_ids: int32 or int64 [n], contiguous. An entry below 0 is a placeholder, and skipped.

    All are on one device. An entry with no place in ``seen`` (slot >= num_slots, or token >=
    32 * num_words) is an error on CPU, before any bit is set, and is skipped on CUDA, where finding
    it would make the host wait.

    Raises:
        RuntimeError: A dtype, shape, device or layout is none of these, or, on CPU, an entry has no
            place.
    """
    _mark_seen_tokens(seen, slots, token_ids)


def apply_repetition_penalty(
    logits: torch.Tensor,
    seen: torch.Tensor,
    slots: torch.Tensor,
    penalties: torch.Tensor,
    rule: DivisionRule | None = None,
) -> None:
    """Penalize the logits of seen tokens as Hugging Face does, bit for bit, in place.

    A logit below zero is multiplied by the row's penalty, any other (-0.0 and NaN too) is divided
    by it.

    Args:
        logits: float32 [n, vocab_size], last dimension contiguous, rows at any distance.
        seen: int32 [num_slots, num_mask_words(vocab_size)], contiguous. Bits at vocab_size and
            above are ignored.
        slots: int32 [n], contiguous: each row's row of ``seen``; below 0 leaves the row untouched.
        penalties: float64 [n], contiguous, above 0: the numbers as Python has them.
        rule: How to divide; by default as Hugging Face does on the device of ``logits``.

    All are on one device. On CUDA a row with slot >= num_slots is left untouched and a penalty is
    not checked, because either check would make the host wait; on CPU both are errors, before any
    logit is changed.

    Raises:
        RuntimeError: A dtype, shape, device or layout is none of these, or, on CPU, a slot or a
            penalty is out of range.
    """
    rule = rule or hf_division_rule(logits.device)
    _apply_repetition_penalty(logits, seen, slots, penalties, rule is DivisionRule.RECIPROCAL)
