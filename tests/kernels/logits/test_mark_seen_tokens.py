"""``mark_seen_tokens`` sets the bits it is told, and no others."""

from typing import Any

import pytest
import torch

from tests.kernels.logits.seen_token_cases import VOCABULARIES, int32, random_tokens, seen_of
from vllm import fork_kernels

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("vocab_size", "words"), [(0, 0), (1, 1), (31, 1), (32, 1), (33, 2), (128256, 4008)]
)
def test_num_mask_words(vocab_size: int, words: int) -> None:
    assert fork_kernels.num_mask_words(vocab_size) == words


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_prompts(ops: Any, device: str, vocab_size: int, dtype: torch.dtype) -> None:
    """Whole prompts in one call: many entries a row, many of a word, some repeated."""
    rows, length = 3, 500
    tokens = random_tokens(rows, length, vocab_size).to(device)
    seen = _zeros(rows, vocab_size, device)
    slots = int32(range(rows), device).repeat_interleave(length)
    ops.mark_seen_tokens(seen, slots, tokens.flatten().to(dtype))
    assert torch.equal(seen, seen_of(tokens, vocab_size))


def test_steps_add_to_what_is_there(ops: Any, device: str) -> None:
    """One token a request and step, in any order of the batch, tokens seen before among them."""
    vocab_size, rows = 100, 4
    tokens = random_tokens(rows, 300, vocab_size).to(device)
    seen = _zeros(rows, vocab_size, device)
    for step in range(tokens.shape[1]):
        order = torch.roll(torch.arange(rows, device=device), step)
        ops.mark_seen_tokens(seen, order.int(), tokens[order, step].contiguous())
    assert torch.equal(seen, seen_of(tokens, vocab_size))


def test_every_bit_of_a_word(ops: Any, device: str) -> None:
    """Bit 31 is the sign of an int32."""
    for token in range(64):
        seen = _zeros(1, 64, device)
        ops.mark_seen_tokens(seen, int32([0], device), int32([token], device))
        assert torch.equal(seen, seen_of(torch.tensor([[token]], device=device), 64))


def test_one_word_of_one_request_at_once(ops: Any, device: str) -> None:
    """The entries meet in one word; each is there twice."""
    tokens = int32([*range(32), *range(32)], device)
    seen = _zeros(2, 64, device)
    ops.mark_seen_tokens(seen, torch.ones_like(tokens), tokens)
    assert seen.tolist() == [[0, 0], [-1, 0]]


def test_placeholders_are_skipped(ops: Any, device: str) -> None:
    seen = _zeros(2, 64, device)
    slots = int32([-1, 0, 1, -5, 1], device)
    ops.mark_seen_tokens(seen, slots, int32([3, -1, 4, -1, -9], device))
    assert seen.tolist() == [[0, 0], [1 << 4, 0]]


def test_a_placeholder_may_pair_with_anything(ops: Any, device: str) -> None:
    seen = _zeros(2, 64, device)
    ops.mark_seen_tokens(seen, int32([-1, 99], device), int32([9999, -1], device))
    assert not seen.any()


@pytest.mark.parametrize("num_slots", [0, 2])
def test_nothing_to_do(ops: Any, device: str, num_slots: int) -> None:
    seen = _zeros(num_slots, 64, device)
    ops.mark_seen_tokens(seen, int32([], device), int32([], device))
    assert not seen.any()


def _zeros(rows: int, vocab_size: int, device: str) -> torch.Tensor:
    words = fork_kernels.num_mask_words(vocab_size)
    return torch.zeros(rows, words, dtype=torch.int32, device=device)
