"""The operators on logits in plain torch, for every device: what the compiled ones are held to."""

import itertools
from collections.abc import Sequence

import torch

from vllm.fork_kernels.logits import checks
from vllm.fork_kernels.logits.checks import APPLY, DRAW, MARK
from vllm.fork_kernels.logits.mask import TOKENS_PER_WORD
from vllm.fork_kernels.logits.mt19937 import (
    MAX_POSITION,
    NUM_WORDS,
    read_generator,
    write_generator,
)

_SKIPPED_AT_ONCE = 1 << 16


def mark_seen_tokens(seen: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
    """Set bits of ``seen``; see :func:`vllm.fork_kernels.mark_seen_tokens`."""
    checks.mark_seen_tokens(seen, slots, token_ids)
    if seen.numel() == 0 or slots.numel() == 0:
        return
    if _can_look_at_values(seen):
        _check_mark_seen_tokens_values(seen, slots, token_ids)

    # Torch has no scattered "or". A scattered sum does the same if each bit is added once, and only
    # where it is not set yet: so sort the bits' addresses and take the first of each run.
    address = _bit_addresses(seen, slots, token_ids).sort().values
    is_first = torch.ones_like(address, dtype=torch.bool)
    is_first[1:] = address[1:] != address[:-1]
    is_first &= address >= 0

    words = seen.view(-1)
    word = address.clamp(min=0) // TOKENS_PER_WORD
    bit = (1 << (address % TOKENS_PER_WORD)).to(torch.int32)
    is_new = is_first & ((words[word] & bit) == 0)
    words.index_add_(0, word, torch.where(is_new, bit, 0))


def apply_repetition_penalty(
    logits: torch.Tensor,
    seen: torch.Tensor,
    slots: torch.Tensor,
    penalties: torch.Tensor,
    reciprocal: bool,
) -> None:
    """Penalize ``logits``; see :func:`vllm.fork_kernels.apply_repetition_penalty`."""
    checks.apply_repetition_penalty(logits, seen, slots, penalties, reciprocal)
    if logits.numel() == 0 or seen.numel() == 0:
        return
    if _can_look_at_values(logits):
        _check_apply_repetition_penalty_values(seen, slots, penalties)

    is_penalized = _unpack_rows(seen, slots, logits.shape[1])
    factor = penalties.float().unsqueeze(1)
    # A divisor that is a tensor divides on every device; torch's shortcut through the reciprocal is
    # for numbers.
    by = penalties.reciprocal().float().unsqueeze(1)
    divided = logits * by if reciprocal else logits / factor
    penalized = torch.where(logits < 0, logits * factor, divided)
    logits.copy_(torch.where(is_penalized, penalized, logits))


def draw_tokens(
    probs: torch.Tensor, states: torch.Tensor, slots: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """Draw a token of each row; see :func:`vllm.fork_kernels.draw_tokens`."""
    checks.draw_tokens(probs, states, slots, offsets)
    slot_of, offset_of = slots.tolist(), offsets.tolist()
    drawing = [row for row, slot in enumerate(slot_of) if slot >= 0]
    drawing.sort(key=lambda row: (slot_of[row], offset_of[row]))
    _check_draw_tokens_values(drawing, states, slot_of, offset_of, probs.shape[1])

    tokens = torch.full((probs.shape[0],), -1)
    generator = torch.Generator()
    for slot, rows in itertools.groupby(drawing, key=lambda row: slot_of[row]):
        write_generator(generator, states[slot])
        position = 0
        for row in rows:
            _skip_numbers(generator, offset_of[row] - position)
            tokens[row] = _draw_token(probs[row], generator)
            position = offset_of[row] + probs.shape[1]
        states[slot] = read_generator(generator)
    return tokens


def _skip_numbers(generator: torch.Generator, count: int) -> None:
    numbers = torch.empty(min(count, _SKIPPED_AT_ONCE), dtype=torch.float64)
    for start in range(0, count, _SKIPPED_AT_ONCE):
        numbers[: count - start].uniform_(generator=generator)


def _draw_token(probs: torch.Tensor, generator: torch.Generator) -> int:
    """What ``torch.multinomial`` does, except that it checks before it draws."""
    quotients = probs / torch.empty_like(probs).exponential_(generator=generator)
    is_drawable = bool(probs.isfinite().all()) and bool((probs > 0).any())
    return int(quotients.argmax()) if is_drawable else -1


def _bit_addresses(
    seen: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """Each entry's position among all bits of ``seen``, int64 [n]; -1 for an entry to skip."""
    num_slots, num_words = seen.shape
    row_bits = num_words * TOKENS_PER_WORD
    tokens = token_ids.long()
    is_real = (slots >= 0) & (slots < num_slots) & (tokens >= 0) & (tokens < row_bits)
    return torch.where(is_real, slots.long() * row_bits + tokens, -1)


def _unpack_rows(seen: torch.Tensor, slots: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The masks of ``slots`` as bool [n, vocab_size]; all False for a slot to skip."""
    num_slots = seen.shape[0]
    is_real = (slots >= 0) & (slots < num_slots)
    words = seen[slots.clamp(0, num_slots - 1).long()]
    shifts = torch.arange(TOKENS_PER_WORD, dtype=torch.int32, device=seen.device)
    bits = (words.unsqueeze(-1) >> shifts) & 1
    return bits.bool().flatten(1)[:, :vocab_size] & is_real.unsqueeze(1)


def _check_mark_seen_tokens_values(
    seen: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor
) -> None:
    """Check that every entry that is no placeholder has its place in ``seen``."""
    num_slots, num_words = seen.shape
    num_tokens = num_words * TOKENS_PER_WORD
    is_real = (slots >= 0) & (token_ids >= 0)
    if bool((is_real & (slots >= num_slots)).any()):
        raise RuntimeError(f"{MARK}: slots must be below {num_slots}, the number of rows of seen.")
    if bool((is_real & (token_ids >= num_tokens)).any()):
        raise RuntimeError(f"{MARK}: token_ids must be below {num_tokens}, the room in seen.")


def _check_apply_repetition_penalty_values(
    seen: torch.Tensor, slots: torch.Tensor, penalties: torch.Tensor
) -> None:
    """Check that every row that is penalized has its slot and a positive penalty."""
    num_slots = seen.shape[0]
    if bool((slots >= num_slots).any()):
        raise RuntimeError(f"{APPLY}: slots must be below {num_slots}, the number of rows of seen.")
    if bool(((slots >= 0) & ~(penalties > 0)).any()):
        raise RuntimeError(f"{APPLY}: penalties must be above 0.")


def _check_draw_tokens_values(
    order: Sequence[int],
    states: torch.Tensor,
    slots: Sequence[int],
    offsets: Sequence[int],
    vocab_size: int,
) -> None:
    """Check that every row that draws has a state, and numbers of its own.

    Args:
        order: the rows that draw, those of one state together and in the order of their numbers.
        states: as in ``draw_tokens``.
        slots: likewise.
        offsets: likewise.
        vocab_size: the numbers of a row.
    """
    num_states = states.shape[0]
    first_free: dict[int, int] = {}
    for row in order:
        slot, offset = slots[row], offsets[row]
        if slot >= num_states:
            raise RuntimeError(f"{DRAW}: slots[{row}] is {slot}, but states has {num_states} rows.")
        if offset < first_free.get(slot, 0):
            raise RuntimeError(
                f"{DRAW}: offsets[{row}] is {offset}, but the numbers before "
                f"{first_free.get(slot, 0)} are behind its state or another row's."
            )
        first_free[slot] = offset + vocab_size
        position = int(states[slot, NUM_WORDS])
        if not 1 <= position <= MAX_POSITION:
            raise RuntimeError(
                f"{DRAW}: states[{slot}] must have a position in 1..{MAX_POSITION}, "
                f"but has {position}."
            )


def _can_look_at_values(tensor: torch.Tensor) -> bool:
    """Whether values can be checked: on CPU, where that needs no wait, and not while tracing."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
