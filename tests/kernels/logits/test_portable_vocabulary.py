"""Log-softmax, argmax, top-k, filters and draws: the bits of the reference, accuracy, errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels import portable_reference as reference
from tests.kernels.logits.seen_token_cases import adversarial_logits, int32
from tests.kernels.portable_cases import (
    DTYPES,
    as_floats,
    assert_same,
    every_number,
    integers,
    numbers,
)
from vllm.fork_kernels.portable.logits import portable_argmax, portable_log_softmax, portable_top_k
from vllm.fork_kernels.portable.sampling import portable_draw, portable_filter

pytestmark = pytest.mark.fast

VOCABULARIES = (1, 2, 15, 64, 1000, 4099)


def logits_of(vocab: int, dtype: torch.dtype = torch.float32, rows: int = 4) -> torch.Tensor:
    """With ties, since most numbers are few."""
    return numbers(rows, vocab, seed=vocab, dtype=dtype, scale=16.0).mul(8).round().div(8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_log_softmax(vocab: int, dtype: torch.dtype) -> None:
    logits = numbers(4, vocab, seed=vocab, dtype=dtype, scale=32.0)
    if vocab > 2:
        logits[1, 1] = -torch.inf
        logits[2] = -300.0
        logits[2, 2] = 88.5
    expected = np.stack([reference.log_softmax(row) for row in as_floats(logits)])
    assert_same(portable_log_softmax(logits), torch.from_numpy(expected))


@pytest.mark.parametrize(
    "row", [[-torch.inf] * 3, [0.0, torch.inf, 1.0], [1.0, 2.0, torch.nan]], ids=str
)
def test_log_softmax_without_a_finite_largest_logit(row: list[float]) -> None:
    logits = torch.tensor([row, [1.0, 2.0, 3.0]])
    expected = torch.stack([torch.full((3,), torch.nan), logits[1]])
    expected[1] = portable_log_softmax(logits[1:])[0]
    assert_same(portable_log_softmax(logits), expected)


def test_log_softmax_accuracy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 2**18, generator=generator) * torch.tensor([[0.1], [1.0], [4.0], [9.0]])
    error = portable_log_softmax(logits).double() - logits.double().log_softmax(-1)
    assert error.abs().max() < 1e-5


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_argmax(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.cat([logits_of(vocab, dtype), adversarial_logits(20, vocab).to(dtype)])
    expected = [reference.argmax(row) for row in as_floats(logits)]
    assert portable_argmax(logits).tolist() == expected


def test_argmax_of_special_numbers() -> None:
    inf, nan = torch.inf, torch.nan
    rows = [[1.0, 3.0, 3.0], [-0.0, 0.0, -1.0], [0.0, -0.0, 0.0], [nan, inf, nan], [1.0, nan, inf]]
    rows += [[-inf] * 3, [-inf, -1e30, -inf]]
    assert portable_argmax(torch.tensor(rows)).tolist() == [1, 0, 0, 0, 1, 0, 1]


@pytest.mark.parametrize("vocab", [15, 1000, 4099])
def test_top_k(vocab: int) -> None:
    logits = torch.cat([logits_of(vocab), adversarial_logits(4, vocab)])
    for k in (1, 2, 15, vocab):
        values, indices = portable_top_k(logits, k)
        order = np.stack([reference.ranking(row)[:k] for row in as_floats(logits)])
        assert torch.equal(indices, torch.from_numpy(order))
        taken = logits.gather(1, indices)
        assert_same(values, torch.where(taken.isnan(), torch.nan, taken))


# temperature, top_k, top_p, min_p
RESTRICTIONS = [
    (1.0, 0, 1.0, 0.0),
    (0.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.3, 50, 1.0, 0.0),
    (1.0, 10**6, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (0.6, 0, 0.0, 0.0),
    (2.0, 0, 0.999999, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.0, 0, 1.0, 1.0),
    (0.8, 40, 0.95, 0.02),
    (100.0, 300, 0.5, 0.0),
]


def restrict(logits: torch.Tensor, restrictions: list[tuple[float, int, float, float]]) -> Any:
    temperatures, top_k, top_p, min_p = zip(*restrictions, strict=True)
    rows = [torch.tensor(column, dtype=torch.float32) for column in (temperatures, top_p, min_p)]
    return portable_filter(logits, rows[0], int32(top_k), rows[1], rows[2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_filter(vocab: int, dtype: torch.dtype) -> None:
    rows = len(RESTRICTIONS)
    logits = logits_of(vocab, dtype, rows=rows)
    logits[:, -1] = -torch.inf
    logits[:, 0] = 3.0
    before = logits.clone()
    expected = [
        reference.restricted(row, *restriction)
        for row, restriction in zip(as_floats(logits), RESTRICTIONS, strict=True)
    ]
    assert_same(restrict(logits, RESTRICTIONS), torch.from_numpy(np.stack(expected)))
    assert_same(logits, before)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_filter_leaves_what_cannot_be_drawn_from(number: float) -> None:
    logits = logits_of(30, rows=2)
    logits[0, 4] = number
    assert_same(restrict(logits, [(0.5, 3, 0.5, 0.5)] * 2)[0], logits[0])
    overflow = torch.tensor([[1.0, 3e38]])
    assert restrict(overflow, [(0.5, 1, 1.0, 0.0)]).tolist() == [[2.0, torch.inf]]


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_draw(vocab: int) -> None:
    logits = numbers(6, vocab, seed=1, scale=4.0)
    if vocab > 2:
        logits[1, 1:] = -torch.inf
        logits[2, : vocab // 2] = -torch.inf
    seeds = torch.tensor([0, 1, -1, 2**62 + 5, -(2**63), 7])
    positions = torch.tensor([0, 5, 2**33, 17, 2**40 + 3, 1])
    expected = [
        reference.draw(row, seed, position)
        for row, seed, position in zip(
            as_floats(logits), seeds.tolist(), positions.tolist(), strict=True
        )
    ]
    assert portable_draw(logits, seeds, positions).tolist() == expected


def test_noise_of_every_kind_of_word() -> None:
    """The ends of the range and what lies between, through the reference's own formula."""
    words = np.concatenate([[0, 1, 2**32 - 1, 2**32 - 128, 2**32 - 129], integers(1000, 1)])
    low = reference.fma((words & 0xFFFF).astype(np.float32), 2.0**-32, 2.0**-33)
    u = reference.fma((words >> 16).astype(np.float32), 2.0**-16, low)
    assert ((u.astype(np.float64) - (words + 0.5) * 2.0**-32) <= u * 2.0**-24).all()
    assert u.min() == 2.0**-33
    assert u.max() == 1.0


def test_philox_is_the_published_one() -> None:
    """A test vector that comes with the paper's library: key and counter of zeros."""
    assert reference.philox(0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_draws_have_the_probabilities_of_the_softmax() -> None:
    rows = 40000
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01])
    logits = probabilities.log().repeat(rows, 1)
    draws = portable_draw(logits, torch.full((rows,), 11), torch.arange(rows))
    counts = torch.bincount(draws, minlength=5).double()
    expected = probabilities.double() * rows
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 18.5  # 4 degrees of freedom: once in a thousand


def test_a_draw_depends_on_seed_position_and_token_alone() -> None:
    logits = numbers(50, 500, seed=2)
    seeds, positions = torch.arange(50) % 7, torch.arange(50) % 11
    together = portable_draw(logits, seeds, positions)
    alone = [portable_draw(*(x[i : i + 1] for x in (logits, seeds, positions))) for i in range(50)]
    assert torch.equal(torch.cat(alone), together)
    same = portable_draw(logits[:1].repeat(50, 1), seeds, positions)
    assert len(set(same.tolist())) > 25  # other seeds and positions, other noise
    # Removing tokens that lose does not change which one wins.
    best = torch.zeros(50, 500).scatter_(1, together[:, None], 1.0).bool()
    kept = best | (numbers(50, 500, seed=3) > 0)
    fewer = portable_draw(logits.masked_fill(~kept, -torch.inf), seeds, positions)
    assert torch.equal(fewer, together)


def test_nothing_to_draw_from() -> None:
    inf = torch.inf
    logits = torch.tensor([[torch.nan, 1.0], [inf, 1.0], [-inf, -inf], [-inf, 1.0]])
    zeros = torch.zeros(4, dtype=torch.int64)
    assert portable_draw(logits, zeros, zeros).tolist() == [-1, -1, -1, 1]


def test_rows_at_any_distance() -> None:
    wide = numbers(3, 700, seed=4, scale=8.0)
    rows = wide[:, 50:400]
    assert_same(portable_log_softmax(rows), portable_log_softmax(rows.contiguous()))
    assert torch.equal(portable_argmax(rows), portable_argmax(rows.contiguous()))


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def filter_with(**wrong: torch.Tensor) -> torch.Tensor:
    given = {
        "logits": zeros(2, 4),
        "temperatures": torch.ones(2),
        "top_k": int32([0, 0]),
        "top_p": torch.ones(2),
        "min_p": zeros(2),
    } | wrong
    return portable_filter(**given)


LONG = torch.int64


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: portable_log_softmax(zeros(2, 4).int()),
            "log_softmax: logits must have dtype flo",
        ),
        (lambda: portable_log_softmax(zeros(4)), r"log_softmax: logits must have 2 dimension\(s\)"),
        (
            lambda: portable_log_softmax(zeros(4, 2).t()),
            "log_softmax: the last dimension of logits",
        ),
        (
            lambda: portable_argmax(zeros(2, 0)),
            "argmax: logits must have 1..524287 columns, but ha",
        ),
        (lambda: portable_argmax(zeros(1, 2**19)), "argmax: logits must have 1..524287 columns"),
        (lambda: portable_top_k(zeros(2, 4), 5), "top_k: k must be in 1..4, but is 5."),
        (lambda: portable_top_k(zeros(2, 4), 0), "top_k: k must be in 1..4, but is 0."),
        (
            lambda: filter_with(temperatures=-torch.ones(2)),
            r"filter: temperatures\[0\] must be finite and not negative, but is -1.",
        ),
        (lambda: filter_with(temperatures=torch.ones(3)), "filter: temperatures must have one ent"),
        (lambda: filter_with(top_k=zeros(2)), "filter: top_k must have dtype int32, but has float"),
        (
            lambda: filter_with(top_p=torch.tensor([1.0, 1.5])),
            r"filter: top_p\[1\] must be in 0..1, but is 1.5.",
        ),
        (
            lambda: filter_with(min_p=torch.tensor([torch.nan, 0.0])),
            r"filter: min_p\[0\] must be in 0..1, but is nan.",
        ),
        (
            lambda: portable_draw(zeros(2, 4), zeros(2), zeros(2, dtype=LONG)),
            "draw: seeds must have dtype int64, but has float32.",
        ),
        (
            lambda: portable_draw(zeros(2, 4), zeros(2, dtype=LONG), zeros(1, dtype=LONG)),
            "draw: positions must have one entry for each of the 2 rows of logits, but has 1.",
        ),
    ],
)
def test_argument_errors(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=f"^portable_{sentence}"):
        call()


def test_every_number_has_its_place_in_the_order() -> None:
    x = every_number(torch.bfloat16).float()
    values, indices = portable_top_k(x[None], len(x))
    numbers_only = values[0, int(x.isnan().sum()) :]
    assert (numbers_only.diff() <= 0).all()
    assert torch.equal(indices[0].sort().values, torch.arange(len(x)))
