"""CUDA kernels on logits, emulated on the CPU: the bits of the CPU's ops."""

import itertools

import pytest
import torch

from tests.kernels import emulated_ops as emulated
from tests.kernels.portable_cases import DTYPES, assert_same, numbers

pytestmark = pytest.mark.some(1)

OPS = torch.ops.vllm_fork
INFINITY = float("inf")
PARTS = (1, 3, 8)
"""Blocks of threads that share a row: also more than it has logits for."""


def rows(count: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
    """Logits with ties, also at the top, rows with special numbers, and a gap between rows."""
    logits = numbers(8, count + 5, seed=seed, dtype=dtype, scale=16.0)
    logits[1] = (logits[1] * 0.5).round()
    logits[2] = 0.0
    logits[2, ::3] = -0.0
    logits[3, count // 2] = torch.nan
    logits[3, count - 1] = torch.nan
    logits[4, ::2] = -INFINITY
    logits[5] = -INFINITY
    logits[6, count // 3] = INFINITY
    logits[7, 0] = 3e4
    return logits[:, :count]


@pytest.mark.some(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 31, 1024, 5000])
def test_log_softmax_and_argmax(dtype: torch.dtype, count: int) -> None:
    logits = rows(count, dtype)
    first, probabilities = OPS.portable_argmax(logits), OPS.portable_log_softmax(logits)
    for parts in PARTS:
        assert_same(emulated.portable_argmax(logits, parts=parts), first)
        assert_same(emulated.portable_log_softmax(logits, parts=parts), probabilities)


@pytest.mark.some(1)
@pytest.mark.parametrize("parts", [5, 40])
@pytest.mark.parametrize("kind", [1, 2, 4, 5, 6])
def test_a_row_in_parts(kind: int, parts: int) -> None:
    """What decides is in one part alone, the first, the last, or one between."""
    count = 4000
    for place in (0, 1700, count - 1):
        logits = rows(count)[kind : kind + 1].clone()
        logits[0, place] = 40.0 if kind < 6 else torch.nan
        zeros = torch.zeros(1, dtype=torch.int64)
        for seed in (1, 2):
            found = emulated.portable_log_softmax(logits, parts=parts, seed=seed)
            assert_same(found, OPS.portable_log_softmax(logits))
            assert emulated.portable_argmax(logits, parts=parts, seed=seed).item() == place
        drawn = emulated.portable_draw(logits, zeros, zeros, parts=parts)
        assert_same(drawn, OPS.portable_draw(logits, zeros, zeros))


@pytest.mark.parametrize(
    ("rows", "count", "multiprocessors", "parts"),
    [
        *[(1, 128256, 132, 63), (1, 32000, 132, 16), (1, 2048, 132, 1), (1, 2049, 132, 2)],
        *[(16, 128256, 132, 9), (132, 128256, 132, 8), (500, 16384, 132, 1), (0, 100, 132, 1)],
        *[(500, 128256, 132, 8), (500, 16385, 132, 2), (1, 2**19 - 1, 1000, 256)],
    ],
)
def test_blocks_that_share_a_row(rows: int, count: int, multiprocessors: int, parts: int) -> None:
    """As many as occupy the GPU, each with 2048 logits at least and 16384 at most."""
    logits = torch.empty(1, count).expand(rows, count)
    assert emulated.row_parts(logits, multiprocessors) == parts


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("count", "k"), [(1, 1), (33, 1), (33, 20), (33, 33), (3000, 7), (3000, 1500), (6000, 5000)]
)
def test_top_k(count: int, k: int) -> None:
    for dtype in DTYPES if count < 100 else DTYPES[:1]:
        logits = rows(count, dtype)
        expected = OPS.portable_top_k(logits, k)
        for parts in PARTS:
            found = emulated.portable_top_k(logits, k, parts=parts, seed=parts)
            for actual, wanted in zip(found, expected, strict=True):
                assert_same(actual, wanted)


def filter_arguments(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[torch.Tensor, ...]:
    """The same for all rows."""
    return (
        torch.full((8,), temperature),
        torch.full((8,), top_k, dtype=torch.int32),
        torch.full((8,), top_p),
        torch.full((8,), min_p),
    )


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1e-40])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_filter_by_temperature(dtype: torch.dtype, temperature: float) -> None:
    logits = rows(700, dtype)
    arguments = filter_arguments(temperature, -1, 1.0, 0.0)
    assert_same(
        emulated.portable_filter(logits, *arguments), OPS.portable_filter(logits, *arguments)
    )


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        *itertools.product([-1, 1, 40, 5000], [0.0, 0.3, 0.999, 1.0], [0.0]),
        *[(50, 0.9, 0.01), (-1, 0.95, 0.2), (30, 1.0, 1.0)],
    ],
)
def test_filter(top_k: int, top_p: float, min_p: float) -> None:
    logits = rows(2100)
    arguments = filter_arguments(1.3, top_k, top_p, min_p)
    expected = OPS.portable_filter(logits, *arguments)
    for parts in PARTS:
        found = emulated.portable_filter(logits, *arguments, parts=parts, seed=top_k + 2 + parts)
        assert_same(found, expected)


@pytest.mark.some(1)
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("top_k", [-1, 3, 1000, 1500])
def test_filter_within_ties(top_k: int, top_p: float) -> None:
    """Where top-k and top-p end among equal logits, more than a block goes through at once."""
    logits = numbers(8, 3000, seed=3).round()
    arguments = filter_arguments(0.9, top_k, top_p, 0.0)
    expected = OPS.portable_filter(logits, *arguments)
    for parts in PARTS:
        found = emulated.portable_filter(logits, *arguments, parts=parts, seed=parts)
        assert_same(found, expected)


VOCABULARY = 128256
RESTRICTIONS = {
    "top_k": (40, 1.0, 0.0),
    "top_p": (-1, 0.95, 0.0),
    "both": (300, 0.9, 0.0),
    "all three": (100000, 0.999, 1e-4),
    "one": (1, 0.5, 0.0),
    "the first alone": (0, 0.0, 0.0),
    "all but one": (VOCABULARY - 1, 1.0, 0.0),
    "all": (VOCABULARY, 1.0, 0.0),
}


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["numbers", "bfloat16", "few", "equal"])
def test_filter_of_a_vocabulary(kind: str) -> None:
    """A row for each restriction, in as many parts as on an H100: 16 of a row, or so."""
    logits = numbers(len(RESTRICTIONS), VOCABULARY, seed=5, scale=8.0)
    if kind == "bfloat16":  # thousands of ties
        logits = logits.bfloat16()
    elif kind == "few":  # a grammar allows so few
        logits[:, torch.arange(VOCABULARY) % 1000 != 17] = -INFINITY
    elif kind == "equal":
        logits = logits.sign()
    top_k, top_p, min_p = zip(*RESTRICTIONS.values(), strict=True)
    arguments = (
        torch.full((len(RESTRICTIONS),), 0.8),
        torch.tensor(top_k, dtype=torch.int32),
        torch.tensor(top_p),
        torch.tensor(min_p),
    )
    expected = OPS.portable_filter(logits, *arguments)
    parts = emulated.row_parts(logits, 132)
    assert parts > 8
    found = emulated.portable_filter(logits, *arguments, parts=parts)
    for name, actual, wanted in zip(RESTRICTIONS, found, expected, strict=True):
        assert actual.view(torch.int32).equal(wanted.view(torch.int32)), name


@pytest.mark.parametrize(("count", "top_k"), [(100, 7), (5000, 1000), (5000, -1)])
def test_a_filter_is_seven_launches(count: int, top_k: int) -> None:
    """The first logit, scaling, four digits of two keys, removal: each reads the logits once."""
    emulated.portable_filter(rows(count), *filter_arguments(1.0, top_k, 0.5, 0.0), parts=3)
    assert emulated.launches_of_logits() == 7


@pytest.mark.parametrize("k", [1, 20, 5000, VOCABULARY])
def test_top_k_of_a_vocabulary(k: int) -> None:
    logits = numbers(2, VOCABULARY, seed=6, scale=8.0)
    logits[1] = logits[1].bfloat16()
    expected = OPS.portable_top_k(logits, k)
    found = emulated.portable_top_k(logits, k, parts=emulated.row_parts(logits, 132))
    for actual, wanted in zip(found, expected, strict=True):
        assert_same(actual, wanted)


@pytest.mark.parametrize(
    "wrong", [(-1.0, 0, 1.0, 0.0), (torch.inf, 0, 1.0, 0.0), (1.0, 0, 1.5, 0.0), (1.0, 0, 1, -0.5)]
)
def test_rows_with_wrong_restrictions_are_nan(wrong: tuple[float, int, float, float]) -> None:
    """Where the CPU refuses; no token is drawn from them."""
    filtered = emulated.portable_filter(rows(100), *filter_arguments(*wrong))
    assert filtered.isnan().all()
    zeros = torch.zeros(8, dtype=torch.int64)
    assert (emulated.portable_draw(filtered, zeros, zeros) == -1).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 30, 4099])
def test_draw(dtype: torch.dtype, count: int) -> None:
    logits = rows(count, dtype)
    seeds = torch.tensor([0, 1, -1, 2**40, 5, 6, 7, -(2**63)])
    positions = torch.tensor([0, 2**33 + 1, 2, 3, 4, 5, 6, 131071])
    expected = OPS.portable_draw(logits, seeds, positions)
    for parts in PARTS:
        assert_same(emulated.portable_draw(logits, seeds, positions, parts=parts), expected)


@pytest.mark.parametrize("parts", PARTS)
def test_draw_from_the_largest_and_smallest_logits(parts: int) -> None:
    """Noise makes no finite logit infinite, nor an infinite one finite."""
    limit = torch.finfo(torch.float32).max
    logits = torch.full((5, 500), -INFINITY)
    logits[0] = limit
    logits[1] = -limit
    logits[2, 333] = -limit
    logits[3, 77] = INFINITY
    places = torch.arange(5)
    expected = OPS.portable_draw(logits, places, places)
    assert expected[2:].tolist() == [333, -1, -1]
    assert_same(emulated.portable_draw(logits, places, places, parts=parts), expected)
