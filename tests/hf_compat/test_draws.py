"""A request's draws are its row of what `torch.multinomial` draws for HF's batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm.hf_compat.draws import Draws, DrawStream

CPU = torch.device("cpu")


def multinomial(seed: int, probs: list[torch.Tensor]) -> list[list[int]]:
    """Return the tokens that HF draws in each step, for each row."""
    torch.manual_seed(seed)
    return [torch.multinomial(step, 1)[:, 0].tolist() for step in probs]


@pytest.mark.parametrize("vocab_size", [5, 301, 32_000])
@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_rows_of_a_batch(num_rows: int, vocab_size: int) -> None:
    probs = [torch.randn(num_rows, vocab_size).softmax(-1) for _ in range(6)]
    stream = DrawStream(5, num_rows, vocab_size, CPU)
    rows = [Draws(stream, row, 0) for row in range(num_rows)]
    for step, expected in zip(probs, multinomial(5, probs), strict=True):
        got = [int((p / draws.take()).argmax()) for p, draws in zip(step, rows, strict=True)]
        assert got == expected


@settings(max_examples=50, deadline=None)
@given(order=st.permutations([row for row in range(3) for _ in range(8)]))
def test_rows_take_their_steps_at_any_time(order: list[int]) -> None:
    """Rows that fall behind or run ahead, by more steps than a stream remembers."""
    probs = [torch.randn(3, 301).softmax(-1) for _ in range(8)]
    expected = multinomial(9, probs)
    stream = DrawStream(9, 3, 301, CPU)
    rows = [Draws(stream, row, 0) for row in range(3)]
    steps = [0, 0, 0]
    for row in order:
        step = steps[row]
        assert int((probs[step][row] / rows[row].take()).argmax()) == expected[step][row]
        steps[row] += 1


@pytest.mark.parametrize("num_drawn", [0, 1, 17])
def test_draws_are_found_again(num_drawn: int) -> None:
    """A request that comes back with part of its answer goes on with the next draw."""
    probs = [torch.randn(2, 301).softmax(-1) for _ in range(num_drawn + 1)]
    expected = multinomial(5, probs)[-1][1]
    draws = Draws(DrawStream(5, 2, 301, CPU), 1, num_drawn)
    assert int((probs[-1][1] / draws.take()).argmax()) == expected
