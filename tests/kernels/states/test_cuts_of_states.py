"""A prompt, its tokens one by one, any cut of it, and any batch that it is in: the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from tests.kernels.portable_cases import assert_same, bits, numbers
from tests.kernels.states.states_cases import LAYERS, Layer

TOKENS = 75
SIZES = {
    "convolution": {"channels": 300},
    "mamba2": {"columns": 80},
    "delta rule": {"columns": 80},
}
DTYPES = (torch.bfloat16, torch.float16)

cases = pytest.mark.parametrize("name", LAYERS)


def make(name: str, tokens: int = TOKENS, dtype: torch.dtype = torch.bfloat16) -> Layer:
    return LAYERS[name](tokens, dtype=dtype, **SIZES[name])


def spans(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(lengths).tolist()
    yield from zip([0, *ends], ends, strict=False)


def in_parts(layer: Layer, lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The calls that chunks of a prompt make, each of which takes up the state of the last."""
    states = layer.empty_states(2)
    parts = [
        layer.part(start, stop).run([stop - start], states, [1], [start > 0])
        for start, stop in spans(lengths)
    ]
    return torch.cat(parts), states[1]


@cases
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "lengths",
    [(1,) * TOKENS, (1, 74), (74, 1), (16, 16, 43), (15, 17, 2, 1, 40), (32, 43), (2, 3) * 15],
    ids=str,
)
def test_any_cut_of_a_prompt(name: str, lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    layer = make(name, dtype=dtype)
    layer = layer.part(0, sum(lengths))
    result, state = layer.alone()
    parts, last = in_parts(layer, lengths)
    assert_same(parts, result)
    assert_same(last, state)


@cases
def test_a_state_may_be_kept_at_any_position(name: str) -> None:
    """As a cache of prefixes keeps it: copied to another block, and taken up by several."""
    layer = make(name)
    result, _ = layer.alone()
    for kept in range(1, TOKENS, 9):
        _, state = layer.part(0, kept).alone()
        for end in (kept + 1, TOKENS):
            assert_same(layer.part(kept, end).alone(state)[0], result[kept:end])


@cases
def test_any_batch(name: str) -> None:
    """Requests that begin, that go on, and that have no token, in any order and block."""
    lengths = [1, 20, 0, 1, 33, 4, 1, 15]
    layer = make(name, sum(lengths))
    parts = [layer.part(start, stop) for start, stop in spans(lengths)]
    goes_on = [True, False, True, False, True, False, True, True]
    before = numbers(len(lengths), *layer.state, seed=71, dtype=layer.state_dtype, scale=2.0)
    alone = [
        part.alone(state if given else None) if part.count else None
        for part, state, given in zip(parts, before, goes_on, strict=True)
    ]
    generator = np.random.default_rng(1)
    for _ in range(8):
        order = generator.permutation(len(lengths)).tolist()[: generator.integers(1, 9)]
        blocks = generator.permutation(12).tolist()[: len(order)]
        states = numbers(12, *layer.state, seed=72, dtype=layer.state_dtype)
        for i, block in zip(order, blocks, strict=True):
            states[block] = before[i]
        untouched = states.clone()
        rows = torch.cat([torch.arange(*list(spans(lengths))[i]) for i in order])
        sizes = [lengths[i] for i in order]
        results = layer.rows(rows).run(sizes, states, blocks, [goes_on[i] for i in order])
        for i, block, (start, stop) in zip(order, blocks, spans(sizes), strict=True):
            expected = alone[i]
            if expected is not None:
                assert_same(results[start:stop], expected[0])
                assert_same(states[block], expected[1])
                untouched[block] = expected[1]
        assert_same(states, untouched)


@cases
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_threads(name: str, threads: int) -> None:
    sizes = {name: size * 8 for name, size in SIZES[name].items()}
    lengths = [40, 3, 40, 1]
    layer = LAYERS[name](sum(lengths), **sizes)
    expected = layer.empty_states(4)
    actual = expected.clone()
    given = ([0, 1, 2, 3], [False] * 4)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = layer.run(lengths, expected, *given)
        torch.set_num_threads(threads)
        several = layer.run(lengths, actual, *given)
    finally:
        torch.set_num_threads(before)
    assert_same(several, one)
    assert_same(actual, expected)


@cases
def test_slices_need_no_copy(name: str) -> None:
    """Inputs are parts of one matrix, and states lie between others' bytes."""
    layer = make(name)
    expected, state = layer.alone()
    widths = [x[0].numel() for x in layer.tokens.values()]
    whole = torch.empty(TOKENS, sum(widths) + 3 * len(widths), dtype=layer.dtype)
    places = np.cumsum([0, *(width + 3 for width in widths)]).tolist()
    for (argument, x), place, width in zip([*layer.tokens.items()], places, widths, strict=False):
        part = whole[:, place : place + width].view(x.shape)
        part.copy_(x)
        assert not part.is_contiguous()
        layer.tokens[argument] = part
    memory = torch.full((3, state.numel() + 5), 7.0, dtype=layer.state_dtype)
    states = memory[:, : state.numel()].view(3, *layer.state)
    assert_same(layer.run([TOKENS], states, [1], [False]), expected)
    assert_same(states[1], state)
    assert memory[[0, 2]].eq(7).all()
    assert memory[:, state.numel() :].eq(7).all()


@cases
def test_tokens_behind_the_last_request_are_zeros(name: str) -> None:
    layer = make(name)
    result, state = layer.part(0, 30).alone()
    for x in layer.tokens.values():
        x[30:] = torch.nan
    states = layer.empty_states(1)
    padded = layer.run([30], states, [0], [False])
    assert_same(padded[:30], result)
    assert_same(states[0], state)
    assert not bits(padded[30:]).any()
    assert not bits(layer.run([], states, [], [])).any()
    assert layer.part(0, 0).run([0], states, [-1], [True]).numel() == 0
    assert_same(states[0], state)
