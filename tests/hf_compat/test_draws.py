"""A request's draws are its row of what `torch.multinomial` draws for HF's batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm import fork_kernels
from vllm.hf_compat.logits.cpu_draws import CPUDraws, CPUStream, draw_on_cpu
from vllm.hf_compat.logits.draws import DrawSource
from vllm.hf_compat.logits.generator_draws import GeneratorStream, draw_with_generators

pytestmark = pytest.mark.fast

CPU = torch.device("cpu")
Draw = Callable[[torch.Tensor, Sequence[object]], torch.Tensor]


def cpu_stream(seed: int, num_rows: int, vocab_size: int) -> CPUStream:
    return CPUStream(fork_kernels.seeded_state(seed), num_rows, vocab_size)


def generator_stream(seed: int, num_rows: int, vocab_size: int) -> GeneratorStream:
    """What other devices use, with the generators of the CPU."""
    return GeneratorStream(seed, num_rows, vocab_size, CPU)


Stream = Callable[[int, int, int], Any]
KINDS: list[tuple[Stream, Draw]] = [
    (cpu_stream, draw_on_cpu),
    (generator_stream, draw_with_generators),
]
both_kinds = pytest.mark.parametrize(("stream_of", "draw"), KINDS, ids=["cpu", "generators"])


def multinomial(seed: int, probs: Sequence[torch.Tensor]) -> list[list[int]]:
    """Return the tokens that HF draws in each step, for each row."""
    torch.manual_seed(seed)
    return [torch.multinomial(step, 1)[:, 0].tolist() for step in probs]


def random_probs(num_steps: int, num_rows: int, vocab_size: int) -> list[torch.Tensor]:
    return [torch.randn(num_rows, vocab_size).softmax(-1) for _ in range(num_steps)]


@both_kinds
@pytest.mark.parametrize("vocab_size", [5, 301, 32_000])
@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_rows_of_a_batch(stream_of: Stream, draw: Draw, num_rows: int, vocab_size: int) -> None:
    probs = random_probs(6, num_rows, vocab_size)
    stream = stream_of(5, num_rows, vocab_size)
    rows = [stream.draws(row, 0) for row in range(num_rows)]
    for step, expected in zip(probs, multinomial(5, probs), strict=True):
        assert draw(step, rows).tolist() == expected


@both_kinds
@settings(max_examples=50, deadline=None)
@given(calls=st.lists(st.sets(st.integers(0, 2), min_size=1).map(list), min_size=1, max_size=12))
def test_rows_take_their_steps_at_any_time(
    stream_of: Stream, draw: Draw, calls: list[list[int]]
) -> None:
    """Rows that fall behind or run ahead, alone or with others, in any order."""
    probs = random_probs(12, 3, 301)
    expected = multinomial(9, probs)
    stream = stream_of(9, 3, 301)
    rows = [stream.draws(row, 0) for row in range(3)]
    steps = [0, 0, 0]
    for call in calls:
        tokens = draw(
            torch.stack([probs[steps[row]][row] for row in call]), [rows[row] for row in call]
        )
        assert tokens.tolist() == [expected[steps[row]][row] for row in call]
        for row in call:
            steps[row] += 1


@both_kinds
@pytest.mark.parametrize("num_drawn", [0, 1, 17])
def test_draws_are_found_again(stream_of: Stream, draw: Draw, num_drawn: int) -> None:
    """A request that comes back with part of its answer goes on with the next draw."""
    probs = random_probs(num_drawn + 3, 2, 301)
    expected = multinomial(5, probs)
    stream = stream_of(5, 2, 301)
    back, new = stream.draws(1, num_drawn), stream.draws(0, 0)
    for step in range(3):
        ours = torch.stack([probs[num_drawn + step][1], probs[step][0]])
        assert draw(ours, [back, new]).tolist() == [
            expected[num_drawn + step][1],
            expected[step][0],
        ]


@both_kinds
def test_equal_requests(stream_of: Stream, draw: Draw) -> None:
    """Two HF batches with one seed, one a step behind the other, then both at the same step."""
    probs = random_probs(5, 2, 301)
    expected = multinomial(3, probs)
    stream = stream_of(3, 2, 301)
    rows = [stream.draws(row % 2, 0) for row in range(4)]
    assert draw(probs[0], rows[:2]).tolist() == expected[0]
    both = torch.cat([probs[1], probs[0]])
    assert draw(both, rows).tolist() == expected[1] + expected[0]
    assert draw(probs[1], rows[2:]).tolist() == expected[1]
    for step in (2, 3, 4):
        both = torch.cat([probs[step], probs[step]])
        assert draw(both, rows).tolist() == expected[step] + expected[step]


@both_kinds
def test_rows_beside_others(stream_of: Stream, draw: Draw) -> None:
    """Other rows, and their number, do not matter."""
    probs = random_probs(6, 4, 301)
    expected = multinomial(8, [step[2:3] for step in probs])
    draws = stream_of(8, 1, 301).draws(0, 0)
    other = stream_of(4, 1, 301).draws(0, 0)
    for number, step in enumerate(probs):
        rows = [None, other, draws, None] if number % 2 else [None, None, draws, other]
        assert int(draw(step, rows)[2]) == expected[number][0]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_rows_in_step_make_each_number_once(
    monkeypatch: pytest.MonkeyPatch, order: list[int]
) -> None:
    """Otherwise the cost of an HF batch would be the square of its rows."""
    calls: list[tuple[int, list[int]]] = []
    draw_tokens = fork_kernels.draw_tokens

    def recorded(*arguments: torch.Tensor) -> torch.Tensor:
        _, states, _, offsets = arguments
        calls.append((len(states), offsets.tolist()))
        return draw_tokens(*arguments)

    monkeypatch.setattr(fork_kernels, "draw_tokens", recorded)
    stream = cpu_stream(1, 4, 50)
    rows = [stream.draws(row, 0) for row in order]
    for step in random_probs(5, 4, 50):
        draw_on_cpu(step, rows)
    assert calls == [(1, [50 * row for row in order])] * 5


def test_seeds() -> None:
    """Those that `torch.manual_seed` takes; requests with the same one share the stream's start."""
    probs = random_probs(1, 1, 301)
    source = DrawSource(301, CPU)
    for seed in (0, 2**32 + 5, 2**63 - 1, -1, -(2**63)):
        draws = source.draws(seed, 1, 0, 0)
        assert draw_on_cpu(probs[0], [draws]).tolist() == multinomial(seed, probs)[0]
    one, other, different = (source.draws(*key, 0, 0) for key in [(5, 2), (5, 2), (5, 3)])
    assert isinstance(one, CPUDraws)
    assert isinstance(other, CPUDraws)
    assert isinstance(different, CPUDraws)
    assert one.place is other.place
    assert one.place is not different.place


def test_without_a_seed() -> None:
    """The global generator governs, and no two requests draw the same."""
    probs = torch.full((8, 30_000), 1 / 30_000)

    def tokens() -> list[list[int]]:
        source = DrawSource(30_000, CPU)
        rows = [source.draws(None, 1, 0, 0) for _ in probs]
        return [draw_on_cpu(probs, rows).tolist() for _ in range(3)]

    torch.manual_seed(1)
    first, second = tokens(), tokens()
    torch.manual_seed(1)
    assert tokens() == first
    assert len({token for step in first + second for token in step}) > 40
