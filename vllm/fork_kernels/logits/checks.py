"""The checks of ``csrc/bindings/checks.cpp`` for tensors that no compiled kernel sees.

They tell torch.compile at trace time what the compiled operators would say at run time. Each
failure is a ``RuntimeError`` of one sentence.
"""

from collections.abc import Sequence

import torch

from vllm.fork_kernels.logits.mask import num_mask_words
from vllm.fork_kernels.logits.mt19937 import STATE_WORDS

MARK = "mark_seen_tokens"
APPLY = "apply_repetition_penalty"
DRAW = "draw_tokens"


def mark_seen_tokens(seen: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
    """Check what can be known of the arguments without their values."""
    _check_seen(MARK, seen)
    _check_vector(MARK, "slots", slots, [torch.int32], seen.device)
    _check_vector(MARK, "token_ids", token_ids, [torch.int32, torch.int64], seen.device)
    _check_length(MARK, "token_ids", token_ids, slots.shape[0], "slots")


def apply_repetition_penalty(
    logits: torch.Tensor,
    seen: torch.Tensor,
    slots: torch.Tensor,
    penalties: torch.Tensor,
    reciprocal: bool,
) -> None:
    """Check what can be known of the arguments without their values."""
    _check_logits(logits)
    rows, vocab_size = logits.shape
    _check_seen(APPLY, seen)
    _check_device(APPLY, "seen", seen, logits.device)
    words = num_mask_words(vocab_size)
    if seen.shape[1] != words:
        raise RuntimeError(
            f"{APPLY}: seen must have {words} words a row for {vocab_size} tokens, "
            f"but has {seen.shape[1]}."
        )
    _check_vector(APPLY, "slots", slots, [torch.int32], logits.device)
    _check_length(APPLY, "slots", slots, rows, "rows of logits")
    _check_vector(APPLY, "penalties", penalties, [torch.float64], logits.device)
    _check_length(APPLY, "penalties", penalties, rows, "rows of logits")


def draw_tokens(
    probs: torch.Tensor, states: torch.Tensor, slots: torch.Tensor, offsets: torch.Tensor
) -> None:
    """Check what can be known of the arguments without their values."""
    _check_dtype(DRAW, "states", states, [torch.int32])
    _check_dim(DRAW, "states", states, 2)
    _check_contiguous(DRAW, "states", states)
    if states.shape[1] != STATE_WORDS:
        raise RuntimeError(
            f"{DRAW}: states must have {STATE_WORDS} words a row, but has {states.shape[1]}."
        )
    _check_float_rows(DRAW, "probs", probs)
    _check_device(DRAW, "probs", probs, states.device)
    _check_vector(DRAW, "slots", slots, [torch.int32], states.device)
    _check_length(DRAW, "slots", slots, probs.shape[0], "rows of probs")
    _check_vector(DRAW, "offsets", offsets, [torch.int64], states.device)
    _check_length(DRAW, "offsets", offsets, probs.shape[0], "rows of probs")


def _check_logits(logits: torch.Tensor) -> None:
    _check_float_rows(APPLY, "logits", logits)
    rows, vocab_size = logits.shape
    if rows > 1 and logits.stride(0) < vocab_size:
        raise RuntimeError(
            f"{APPLY}: the rows of logits must not overlap, "
            f"but their stride is {logits.stride(0)} for {vocab_size} tokens."
        )


def _check_float_rows(op: str, name: str, tensor: torch.Tensor) -> None:
    _check_dtype(op, name, tensor, [torch.float32])
    _check_dim(op, name, tensor, 2)
    if tensor.shape[1] > 1 and tensor.stride(1) != 1:
        raise RuntimeError(
            f"{op}: the last dimension of {name} must be contiguous, "
            f"but has stride {tensor.stride(1)}."
        )


def _check_seen(op: str, seen: torch.Tensor) -> None:
    _check_dtype(op, "seen", seen, [torch.int32])
    _check_dim(op, "seen", seen, 2)
    _check_contiguous(op, "seen", seen)


def _check_vector(
    op: str,
    name: str,
    tensor: torch.Tensor,
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> None:
    _check_dtype(op, name, tensor, dtypes)
    _check_dim(op, name, tensor, 1)
    _check_contiguous(op, name, tensor)
    _check_device(op, name, tensor, device)


def _check_dtype(op: str, name: str, tensor: torch.Tensor, dtypes: Sequence[torch.dtype]) -> None:
    if tensor.dtype not in dtypes:
        expected = " or ".join(_dtype_name(dtype) for dtype in dtypes)
        raise RuntimeError(
            f"{op}: {name} must have dtype {expected}, but has {_dtype_name(tensor.dtype)}."
        )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_dim(op: str, name: str, tensor: torch.Tensor, dim: int) -> None:
    if tensor.dim() != dim:
        raise RuntimeError(f"{op}: {name} must have {dim} dimension(s), but has {tensor.dim()}.")


def _check_contiguous(op: str, name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise RuntimeError(f"{op}: {name} must be contiguous.")


def _check_device(op: str, name: str, tensor: torch.Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise RuntimeError(
            f"{op}: {name} must be on the same device as the tensor that is changed in place."
        )


def _check_length(op: str, name: str, tensor: torch.Tensor, length: int, of_what: str) -> None:
    if tensor.shape[0] != length:
        raise RuntimeError(
            f"{op}: {name} must have one entry for each of the {length} {of_what}, "
            f"but has {tensor.shape[0]}."
        )
