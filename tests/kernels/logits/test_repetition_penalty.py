"""``apply_repetition_penalty`` gives the bits of Hugging Face's processor, and touches no others.

``test_cpu_isa.py`` runs this file once more for every instruction set of the CPU.
"""

import os
from typing import Any

import pytest
import torch

from tests.kernels.logits.seen_token_cases import (
    BEST_ISA,
    ISA_VARIABLE,
    PENALTIES,
    VOCABULARIES,
    adversarial_logits,
    assert_same_bits,
    by_hand,
    hugging_face,
    int32,
    random_tokens,
    seen_of,
)
from vllm.fork_kernels import DivisionRule

pytestmark = pytest.mark.fast


def test_the_instruction_set_that_is_tested() -> None:
    assert torch.ops.vllm_fork.cpu_isa() == (os.environ.get(ISA_VARIABLE) or BEST_ISA)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_same_bits_as_hugging_face(
    ops: Any, device: str, vocab_size: int, penalty: float, rows: int
) -> None:
    logits = adversarial_logits(rows, vocab_size).to(device)
    tokens = random_tokens(rows, vocab_size // 8 + 2, vocab_size).to(device)
    actual = logits.clone()
    ops.apply_repetition_penalty(
        actual,
        seen_of(tokens, vocab_size),
        int32(range(rows), device),
        torch.full((rows,), penalty, dtype=torch.float64, device=device),
    )
    assert_same_bits(actual, hugging_face(logits, tokens, penalty))


@pytest.mark.parametrize("length", [1, 3, 4096])
def test_any_density_of_seen_tokens(ops: Any, device: str, length: int) -> None:
    """Few bits leave whole blocks of words to skip; many leave none."""
    vocab_size = 4096 + 17
    logits = adversarial_logits(3, vocab_size).to(device)
    tokens = random_tokens(3, length, vocab_size).to(device)
    actual = logits.clone()
    ops.apply_repetition_penalty(
        actual, seen_of(tokens, vocab_size), int32(range(3), device), _full(3, 1.3, device)
    )
    assert_same_bits(actual, hugging_face(logits, tokens, 1.3))


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 511, 512, 513, 545])
def test_every_token_seen(ops: Any, device: str, vocab_size: int) -> None:
    """Every lane of every vector, with each possible end of a row, and nothing behind it."""
    buffer = adversarial_logits(2, vocab_size + 40).to(device)
    before = buffer.clone()
    logits = buffer[:, :vocab_size]
    tokens = torch.arange(vocab_size, device=device).repeat(2, 1)
    # Marks in the padding of the last word stand for no token.
    seen = torch.full_like(seen_of(tokens, vocab_size), -1)
    ops.apply_repetition_penalty(logits, seen, int32(range(2), device), _full(2, 1.2, device))
    expected = hugging_face(before[:, :vocab_size].contiguous(), tokens, 1.2)
    assert_same_bits(logits.contiguous(), expected)
    assert_same_bits(buffer[:, vocab_size:].contiguous(), before[:, vocab_size:].contiguous())


def test_rows_of_a_batch(ops: Any, device: str) -> None:
    """Each row has its penalty and its slot; a row without a slot stays; slots may be shared."""
    vocab_size, rows = 1000, 6
    logits = adversarial_logits(rows, vocab_size).to(device)
    tokens = random_tokens(4, 300, vocab_size).to(device)
    slots = [3, -1, 0, 2, 2, -7]
    penalties = torch.tensor([1.1, 1.2, 1.3, 2.0, 0.5, 10.0], dtype=torch.float64, device=device)
    actual = logits.clone()
    ops.apply_repetition_penalty(
        actual, seen_of(tokens, vocab_size), int32(slots, device), penalties
    )
    for row, slot in enumerate(slots):
        expected = logits[row : row + 1]
        if slot >= 0:
            penalty = [1.1, 1.2, 1.3, 2.0, 0.5, 10.0][row]
            expected = hugging_face(expected, tokens[slot : slot + 1], penalty)
        assert_same_bits(actual[row : row + 1], expected)


def test_penalties_of_untouched_rows_are_not_looked_at(ops: Any, device: str) -> None:
    logits = adversarial_logits(1, 64).to(device)
    actual = logits.clone()
    seen = torch.full((1, 2), -1, dtype=torch.int32, device=device)
    ops.apply_repetition_penalty(actual, seen, int32([-1], device), _full(1, 0.0, device))
    assert_same_bits(actual, logits)


@pytest.mark.parametrize("stride", [100, 101, 128, 1000])
def test_row_strides(ops: Any, device: str, stride: int) -> None:
    """A row may be followed by anything, which is left alone."""
    vocab_size, rows = 100, 7
    buffer = adversarial_logits(rows, stride).to(device)
    before = buffer.clone()
    tokens = random_tokens(rows, 40, vocab_size).to(device)
    ops.apply_repetition_penalty(
        buffer[:, :vocab_size],
        seen_of(tokens, vocab_size),
        int32(range(rows), device),
        _full(rows, 1.1, device),
    )
    expected = before.clone()
    expected[:, :vocab_size] = hugging_face(before[:, :vocab_size].contiguous(), tokens, 1.1)
    assert_same_bits(buffer, expected)


@pytest.mark.parametrize("shape", [(0, 64), (2, 0), (0, 0)])
def test_nothing_to_do(ops: Any, device: str, shape: tuple[int, int]) -> None:
    rows, vocab_size = shape
    seen = torch.zeros(2, -(-vocab_size // 32), dtype=torch.int32, device=device)
    logits = torch.zeros(shape, device=device)
    ops.apply_repetition_penalty(logits, seen, int32(range(rows), device), _full(rows, 1.1, device))
    assert logits.shape == shape


@pytest.mark.parametrize("rule", DivisionRule)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_both_division_rules_on_every_device(
    ops: Any, device: str, penalty: float, rule: DivisionRule
) -> None:
    vocab_size = 4096
    logits = adversarial_logits(2, vocab_size)
    actual = logits.to(device, copy=True)
    seen = torch.full((2, vocab_size // 32), -1, dtype=torch.int32, device=device)
    slots = int32(range(2), device)
    ops.apply_repetition_penalty(actual, seen, slots, _full(2, penalty, device), rule)
    assert_same_bits(actual.cpu(), by_hand(logits, penalty, rule))


def test_the_division_rules_differ() -> None:
    """Otherwise the tests above would not tell one from the other."""
    logits = adversarial_logits(1, 4096).nan_to_num()
    divided = by_hand(logits, 1.1, DivisionRule.DIVIDE)
    multiplied = by_hand(logits, 1.1, DivisionRule.RECIPROCAL)
    assert not torch.equal(divided, multiplied)


def _full(rows: int, penalty: float, device: str) -> torch.Tensor:
    return torch.full((rows,), penalty, dtype=torch.float64, device=device)
