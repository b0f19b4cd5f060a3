"""``draw_tokens`` gives the tokens of ``torch.multinomial``, and leaves its generators' states."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.logits.seen_token_cases import int32
from vllm import fork_kernels
from vllm.fork_kernels.logits.mt19937 import (
    MAX_POSITION,
    NUM_WORDS,
    read_generator,
    write_generator,
)

pytestmark = pytest.mark.fast

VOCABULARIES = (1, 2, 7, 15, 16, 17, 301, 311, 312, 313, 4096, 32000, 128256)
SEEDS = (0, 1, 2**32 + 5, 2**63 - 1, 2**64 - 1, -1, -(2**63))


# --- what the tests share -------------------------------------------------------------------------
def flat(scores: torch.Tensor) -> torch.Tensor:
    return torch.full_like(scores, 1 / scores.shape[1])


def top_k(scores: torch.Tensor) -> torch.Tensor:
    worst = scores.topk(min(50, scores.shape[1])).values[:, -1:]
    return scores.masked_fill(scores < worst, -torch.inf).softmax(-1)


def one_hot(scores: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(scores).scatter_(1, scores.argmax(-1, keepdim=True), 1.0)


def last_after_subnormals(scores: torch.Tensor) -> torch.Tensor:
    probs = scores.softmax(-1) * 1e-40
    probs[:, -1] = 1.0
    return probs


DISTRIBUTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda scores: scores.softmax(-1),
    "peaked": lambda scores: (8 * scores).softmax(-1),
    "flat": flat,
    "rounded": lambda scores: scores.bfloat16().float().softmax(-1).bfloat16().float(),
    "top_k": top_k,
    "one_hot": one_hot,
    "subnormal": lambda scores: scores.softmax(-1) * 1e-41 + 1e-44,
    "last_after_subnormals": last_after_subnormals,
}


def scores_of(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[-1])) * 2


def generators_of(*seeds: int) -> tuple[list[torch.Generator], torch.Tensor]:
    """Torch's generators, and their states."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return generators, torch.stack([fork_kernels.seeded_state(seed) for seed in seeds])


def multinomial(probs: torch.Tensor, generators: list[torch.Generator]) -> list[int]:
    """A token of each row, with a generator for each."""
    rows = zip(probs, generators, strict=True)
    return [int(torch.multinomial(row, 1, generator=generator)) for row, generator in rows]


def own_states(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots and offsets of rows that each have a state and start from it."""
    return int32(range(rows)), torch.zeros(rows, dtype=torch.int64)


def skip(generator: torch.Generator, count: int) -> None:
    torch.empty(count, dtype=torch.float64).uniform_(generator=generator)


def assert_states(states: torch.Tensor, generators: list[torch.Generator]) -> None:
    assert torch.equal(states, torch.stack([read_generator(g) for g in generators]))


# --- the tokens -----------------------------------------------------------------------------------
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_tokens_of_multinomial(ops: Any, vocab_size: int, distribution: str) -> None:
    rows, steps = (2, 2) if vocab_size > 4096 else (5, 4)
    scores = scores_of(steps, rows, vocab_size)
    generators, states = generators_of(*range(40, 40 + rows))
    for step in scores:
        probs = DISTRIBUTIONS[distribution](step)
        tokens = ops.draw_tokens(probs, states, *own_states(rows))
        assert tokens.tolist() == multinomial(probs, generators)
        assert_states(states, generators)


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds(ops: Any, seed: int) -> None:
    generators, states = generators_of(seed)
    probs = scores_of(1, 4096).softmax(-1)
    tokens = ops.draw_tokens(probs, states, *own_states(1))
    assert tokens.tolist() == multinomial(probs, generators)
    assert_states(states, generators)


@pytest.mark.parametrize("vocab_size", [1, 156, 311, 312, 313, 1000])
def test_rows_of_one_generator(ops: Any, vocab_size: int) -> None:
    """A batch of Hugging Face's: its rows, in any order, continue one generator."""
    places = [3, 0, 4, 1, 2]
    (generator,), states = generators_of(7)
    offsets = torch.tensor(places) * vocab_size
    slots = torch.zeros(len(places), dtype=torch.int32)
    for step in scores_of(3, len(places), vocab_size).softmax(-1):
        expected = torch.multinomial(step, 1, generator=generator)[:, 0]
        tokens = ops.draw_tokens(step[places], states, slots, offsets)
        assert tokens.tolist() == expected[places].tolist()
        assert_states(states, [generator])


@pytest.mark.parametrize("vocab_size", [5, 312])
def test_offsets(ops: Any, vocab_size: int) -> None:
    """Skipped numbers are those that other rows of a batch of Hugging Face's would draw."""
    (generator,), states = generators_of(7)
    for offset in [0, 1, 306, 307, 311, 312, 313, 623, 624, 625, 100_003]:
        skip(generator, offset)
        probs = scores_of(1, vocab_size).softmax(-1)
        tokens = ops.draw_tokens(probs, states, int32([0]), torch.tensor([offset]))
        assert tokens.tolist() == multinomial(probs, [generator])
        assert_states(states, [generator])


def test_rows_without_a_slot(ops: Any) -> None:
    """They draw nothing, and states that no row names stay as they are."""
    generators, states = generators_of(1, 2, 3)
    before = states.clone()
    probs = scores_of(4, 50).softmax(-1)
    offsets = torch.tensor([-9, 0, 0, -9])
    tokens = ops.draw_tokens(probs, states, int32([-1, 2, 0, -5]), offsets)
    assert tokens[[0, 3]].tolist() == [-1, -1]
    assert tokens[[1, 2]].tolist() == multinomial(probs[1:3], [generators[2], generators[0]])
    assert torch.equal(states[1], before[1])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads(num_threads: int) -> None:
    rows = 9
    generators, states = generators_of(*range(rows))
    probs = scores_of(rows, 40_000).softmax(-1)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    tokens = fork_kernels.draw_tokens(probs, states, *own_states(rows))
    torch.set_num_threads(before)
    assert tokens.tolist() == multinomial(probs, generators)
    assert_states(states, generators)


@pytest.mark.parametrize("stride", [100, 101, 1000])
def test_row_strides(ops: Any, stride: int) -> None:
    generators, states = generators_of(1, 2, 3)
    probs = scores_of(3, stride).softmax(-1)[:, :100]
    tokens = ops.draw_tokens(probs, states, *own_states(3))
    assert tokens.tolist() == multinomial(probs, generators)


def test_no_rows(ops: Any) -> None:
    _, states = generators_of(1)
    assert ops.draw_tokens(torch.empty(0, 50), states, *own_states(0)).shape == (0,)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
@pytest.mark.parametrize("vocab_size", [1, 20, 1000])
def test_rows_that_multinomial_refuses(ops: Any, vocab_size: int, value: float) -> None:
    """One NaN or infinity, or nothing but zeros: no token, and the numbers are used up."""
    generators, states = generators_of(1, 2, 3)
    probs = scores_of(3, vocab_size).softmax(-1)
    probs[1, slice(None) if value == 0 else vocab_size // 2] = value
    with pytest.raises(RuntimeError):
        torch.multinomial(probs[1], 1)
    tokens = ops.draw_tokens(probs, states, *own_states(3))
    probs[1] = 1.0
    expected = multinomial(probs, generators)
    assert tokens.tolist() == [expected[0], -1, expected[2]]
    assert_states(states, generators)


# --- numbers that a seed hardly ever gives --------------------------------------------------------
def untempered(words: np.ndarray) -> np.ndarray:
    """The words of a state for which the generator gives out `words`, both uint32."""
    outputs = np.array([_tempered(1 << bit) for bit in range(32)], dtype=np.uint64)
    inverse = _inverse_of_bit_matrix(outputs)
    result = np.zeros(words.shape, dtype=np.uint32)
    for bit in range(32):
        result ^= np.where((words >> np.uint32(bit)) & np.uint32(1), inverse[bit], np.uint32(0))
    return result


def _tempered(word: int) -> int:
    word ^= word >> 11
    word ^= (word << 7) & 0x9D2C5680
    word ^= (word << 15) & 0xEFC60000
    return word ^ (word >> 18)


def _inverse_of_bit_matrix(columns: np.ndarray) -> np.ndarray:
    """Gauss's elimination over bits: input i gives `columns[i]`; which input gives bit i?"""
    rows = [(int(column), 1 << i) for i, column in enumerate(columns)]
    for bit in range(32):
        pivot = next(k for k in range(bit, 32) if rows[k][0] >> bit & 1)
        rows[bit], rows[pivot] = rows[pivot], rows[bit]
        for k in range(32):
            if k != bit and rows[k][0] >> bit & 1:
                rows[k] = (rows[k][0] ^ rows[bit][0], rows[k][1] ^ rows[bit][1])
    return np.array([row[1] for row in rows], dtype=np.uint32)


def state_that_gives(numbers: list[int]) -> tuple[torch.Generator, torch.Tensor]:
    """A generator whose next uniform numbers are `numbers` * 2**-53, and its state [1, 625]."""
    words = np.zeros(NUM_WORDS + 1, dtype=np.uint32)
    given = np.array(numbers, dtype=np.uint64)
    words[2 : 2 * len(given) + 2 : 2] = untempered((given >> np.uint64(32)).astype(np.uint32))
    words[3 : 2 * len(given) + 2 : 2] = untempered(given.astype(np.uint32))
    words[NUM_WORDS] = 1  # the number before them is used up
    state = torch.from_numpy(words.view(np.int32).copy())
    generator = torch.Generator()
    write_generator(generator, state)
    return generator, state.unsqueeze(0)


def test_the_state_gives_what_it_should() -> None:
    numbers = [0, 1, 2**32, 2**53 - 1, 123456789]
    generator, _ = state_that_gives(numbers)
    uniform = torch.empty(5, dtype=torch.float64).uniform_(generator=generator)
    assert (uniform * 2**53).long().tolist() == numbers


HALF = 2**52


@pytest.mark.parametrize(
    ("numbers", "probs"),
    [
        ([HALF, 0, HALF], [0.5, 0.25, 0.25]),  # the exponential number is 0, the quotient infinite
        ([0, 0, HALF], [0.5, 0.25, 0.25]),  # two of them: the first
        ([HALF, 0, 0], [0.5, 0.0, 0.5]),  # 0 / 0 is NaN, which wins
        ([0, 0, HALF], [0.5, 0.0, 0.5]),  # also over infinity
        ([0, HALF, 0], [0.0, 0.9, 0.1]),  # which does not win it back
        ([0, HALF, 1], [0.0, 0.9, 0.1]),
        ([0, 0, 0], [0.0, 0.0, 1.0]),  # two NaN: the first
        ([1, HALF, 2**53 - 1], [0.1, 0.1, 0.8]),  # the smallest and the largest exponential number
        ([2, 1, 1], [0.5, 0.25, 0.25]),  # equal quotients: the first
        ([2**53 - 1] * 3, [0.0, 1e-45, 1e-45]),  # all quotients are rounded to 0
        ([HALF, 2**53 - 1, HALF], [0.0, 1e-45, 2e-45]),
    ],
)
@pytest.mark.parametrize("padding", [0, 40])  # with and without a filter of many tokens at once
def test_extreme_numbers(ops: Any, numbers: list[int], probs: list[float], padding: int) -> None:
    numbers = [HALF] * padding + numbers + [HALF] * padding
    row = torch.tensor([[0.0] * padding + probs + [0.0] * padding])
    generator, states = state_that_gives(numbers)
    tokens = ops.draw_tokens(row, states, *own_states(1))
    assert tokens.tolist() == multinomial(row, [generator])
    assert_states(states, [generator])


@pytest.mark.parametrize("unit", [2**20, 2**31, 2**32, 2**40])
@pytest.mark.parametrize("quotient", [1e-30, 1e-3, 1.0, 1e3])
def test_winners_by_a_hair(ops: Any, quotient: float, unit: int) -> None:
    """Quotients that grow by their last bit, of numbers where the exponential is hardly larger."""
    numbers = [unit * (1 + k % 7) for k in range(300)]
    generator, _ = state_that_gives(numbers)
    exponential = torch.empty(300).exponential_(generator=generator)
    wanted = torch.full((300,), quotient).view(torch.int32) + torch.arange(300, dtype=torch.int32)
    row = (exponential * wanted.view(torch.float32)).unsqueeze(0)
    for end in range(1, 301, 23):
        generator, states = state_that_gives(numbers)
        tokens = ops.draw_tokens(row[:, :end], states, *own_states(1))
        assert tokens.tolist() == multinomial(row[:, :end], [generator])


# --- states ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [0, 1, 311, 312, 313, 1000])
def test_states_are_read_and_written(count: int) -> None:
    generator, other = torch.Generator().manual_seed(3), torch.Generator()
    skip(generator, count)
    state = read_generator(generator)
    assert state.dtype == torch.int32
    assert state[NUM_WORDS] == (count - 1) % MAX_POSITION + 1
    write_generator(other, state)
    assert torch.equal(read_generator(other), state)
    numbers = [torch.rand(2000, generator=each, dtype=torch.float64) for each in (generator, other)]
    assert torch.equal(*numbers)


def test_half_a_number_has_no_state() -> None:
    generator = torch.Generator()
    torch.rand(1, generator=generator)
    with pytest.raises(ValueError, match="half a number"):
        read_generator(generator)


def test_random_states(ops: Any) -> None:
    """The global generator decides them, and they are those of a generator."""
    torch.manual_seed(4)
    states = torch.stack([fork_kernels.random_state(), fork_kernels.random_state()])
    torch.manual_seed(4)
    assert torch.equal(fork_kernels.random_state(), states[0])
    assert (states[0] != states[1]).float().mean() > 0.9
    assert (states[:, :NUM_WORDS] < 0).float().mean().item() == pytest.approx(0.5, abs=0.1)
    generators = [torch.Generator(), torch.Generator()]
    for generator, state in zip(generators, states, strict=True):
        write_generator(generator, state)
    probs = scores_of(2, 1000).softmax(-1)
    assert ops.draw_tokens(probs, states, *own_states(2)).tolist() == multinomial(probs, generators)
